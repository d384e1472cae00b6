// Streamlit keeps to itself where these sliders stand: here the server is told, at once where the browser has
// nothing to draw or a pointer lets go, else when the keys rest. What the server draws would take the browser's
// time from what is drawn while the hand moves.
const REST_MS = 400;  // from a key to the next that still belongs to it
export default component => Hand.mount(component, component.parentElement);

class Hand extends Listener {
  touched = null;  // the slider that a hand is at
  isDown = false;  // the hand holds it, or a key that moves it
  timer = null;

  constructor(host) {
    super();
    this.host = host;  // marked data-moves until the server is told: tests wait for that
    this.on('pointerdown keydown drop', ({target, type}) => {
      const slider = keyOf(target) in this.at ? keyOf(target) : null;
      if (slider !== this.touched) this.flush();
      this.touched = slider;
      this.stood = standing(slider);
      this.isDown = slider !== null && type !== 'drop';
      this.isPointer = type === 'pointerdown';
    });
    this.on('pointerup pointercancel keyup blur', ({type, target}) => {
      if (!this.isDown || (type === 'blur' && target !== window)) return;  // a slider that is taken blurs another
      this.isDown = false;
      if (this.isMoved) this.wait();
    });
    this.onMoves(() => {  // of all that is drawn anew, too
      if (!this.touched || standing(this.touched) === this.stood) return;
      this.stood = standing(this.touched);
      this.wait();
    });
  }

  // With each of the server's answers: a key may have moved a slider before this was there to hear it, or what the
  // server was told of it was lost, as happens while the page is first drawn. Of one place it is told once more.
  take({data, setTriggerValue}) {
    Object.assign(this, {at: data.at, tell: () => setTriggerValue('moved', true)});
    if (!this.isAhead) this.told = null;
    if (!this.isAhead || this.stands === this.told || this.isMoved || this.isDown) return;
    this.host.dataset.moves = '';
    this.timer = setTimeout(() => this.isAhead ? this.flush() : this.stop(), REST_MS);
  }

  get stands() { return Object.keys(this.at).map(standing).join(); }

  // Whether a slider stands where the server does not know of.
  get isAhead() { return Object.entries(this.at).some(([slider, stop]) => ![null, stop].includes(standing(slider))); }

  get isMoved() { return 'moves' in this.host.dataset; }

  // Later, as Streamlit takes a slider's value after this event, and as the browser may draw it first.
  wait() {
    this.host.dataset.moves = '';
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      if (this.isDown && this.isPointer) return;  // Streamlit takes the value when it is let go
      const isServers = standing(this.touched) === this.at[this.touched];
      if (this.isPointer || (!isServers && !document.querySelector('.bucketsim-drawn'))) return this.flush();
      if (!this.isDown) this.timer = setTimeout(() => this.flush(), REST_MS);
    }, 0);
  }

  flush() {
    if (!this.isMoved) return clearTimeout(this.timer);
    this.stop();
    this.told = this.stands;
    this.tell();
  }

  stop() {
    clearTimeout(this.timer);
    delete this.host.dataset.moves;
  }
}
