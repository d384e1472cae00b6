// Streamlit keeps to itself where these sliders stand: here the server is told, at once where the browser has
// nothing to draw or a pointer lets go, else when the keys rest. What the server draws would take the browser's
// time from what is drawn while the hand moves.
const REST_MS = 400;  // from a key to the next that still belongs to it

export default function ({data, parentElement, setTriggerValue}) {
  const hand = parentElement.hand ??= new Hand(parentElement);
  const turn = hand.turn = {};
  Object.assign(hand, {at: data.at, tell: () => setTriggerValue('moved', true)});
  hand.check();
  return () => {
    if (hand.turn !== turn) return;  // a later call has it
    hand.leave();
    delete parentElement.hand;
  };
}

class Hand {
  touched = null;  // the slider that a hand is at
  isDown = false;  // the hand holds it, or a key that moves it
  timer = null;
  left = new AbortController();

  constructor(place) {
    this.place = place;  // marked data-moves until the server is told: tests wait for that
    const on = (kinds, heard) => kinds.split(' ').forEach(
      kind => window.addEventListener(kind, heard, {capture: true, passive: true, signal: this.left.signal}));
    on('pointerdown keydown drop', ({target, type}) => {
      const slider = this.sliderOf(target);
      if (slider !== this.touched) this.flush();
      this.touched = slider;
      this.stood = this.standing;
      this.isDown = slider !== null && type !== 'drop';
      this.isPointer = type === 'pointerdown';
    });
    on('pointerup pointercancel keyup blur', ({type, target}) => {
      if (!this.isDown || (type === 'blur' && target !== window)) return;  // a slider that is taken blurs another
      this.isDown = false;
      if (this.isMoved) this.wait();
    });
    this.watch = new MutationObserver(() => {  // of all that is drawn anew, too
      if (!this.touched || this.standing === this.stood) return;
      this.stood = this.standing;
      this.wait();
    });
    this.watch.observe(document.body, {subtree: true, attributeFilter: ['aria-valuetext']});
  }

  // With each of the server's answers: a key may have moved a slider before this was there to hear it, or what the
  // server was told of it was lost, as happens while the page is first drawn. Of one place it is told once more.
  check() {
    if (!this.isAhead) this.told = null;
    if (!this.isAhead || this.stands === this.told || this.isMoved || this.isDown) return;
    this.place.dataset.moves = '';
    this.timer = setTimeout(() => this.isAhead ? this.flush() : delete this.place.dataset.moves, REST_MS);
  }

  get stands() {
    return Object.keys(this.at).map(standing).join();
  }

  // Whether a slider stands where the server does not know of.
  get isAhead() {
    return Object.entries(this.at).some(([slider, stop]) => ![null, stop].includes(standing(slider)));
  }

  get isMoved() {
    return 'moves' in this.place.dataset;
  }

  // What the slider says that a hand is at.
  get standing() {
    return standing(this.touched);
  }

  sliderOf(element) {
    const key = keyOf(element);
    return key in this.at ? key : null;
  }

  // A timer, as Streamlit takes a slider's value after this event, and as the browser may draw it first.
  wait() {
    this.place.dataset.moves = '';
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      if (this.isDown && this.isPointer) return;  // Streamlit takes the value when it is let go
      const isServers = this.standing === this.at[this.touched];
      if (this.isPointer || (!isServers && !document.querySelector('.bucketsim-drawn'))) return this.flush();
      if (!this.isDown) this.timer = setTimeout(() => this.flush(), REST_MS);
    }, 0);
  }

  flush() {
    clearTimeout(this.timer);
    if (!this.isMoved) return;
    delete this.place.dataset.moves;
    this.told = this.stands;
    this.tell();
  }

  leave() {
    this.left.abort();
    this.watch.disconnect();
    clearTimeout(this.timer);
  }
}
