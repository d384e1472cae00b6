// While the hand moves a slider, headline and timeline are drawn here from what the server played beforehand.
// The slider is Streamlit's own: the server hears of it by hand.js, and what it draws takes this one's place.

export default function ({data, parentElement, setStateValue}) {
  const follower = parentElement.follower ??= new Follower();  // called again for each payload; the page has one
  const turn = follower.turn = {};
  follower.take(data, setStateValue);
  return () => {
    if (follower.turn !== turn) return;  // a later call has it
    follower.leave();
    delete parentElement.follower;
  };
}

class Follower {
  known = new Map();     // by slider: its group, where it began, and the frames of its stops that are here
  asked = {};            // what the server was told that is here: it makes what comes next
  hand = null;           // the slider that was touched last, and nothing else since
  unsure = null;         // the id of a state in which another knob was turned that the server has not drawn yet
  drawn = null;          // what is drawn here now
  left = new AbortController();

  constructor() {
    const on = (kinds, heard) => kinds.split(' ').forEach(
      kind => window.addEventListener(kind, heard, {capture: true, passive: true, signal: this.left.signal}));
    on('pointerdown keydown drop', event => {
      this.hand = this.sliderOf(event.target);
      if (!this.hand) this.hide();
    });
    on('popstate', () => { this.hand = null; this.hide(); });
    on('resize', () => this.hide());
    on('focusin pointerover', event => this.approach(this.sliderOf(event.target)));
    on('input change click', event => {
      const sidebar = document.querySelector('[data-testid=stSidebar]');
      const place = event.target.closest?.('[role=option]') ? document.activeElement : event.target;
      const isTurned = event.type !== 'click' || place !== event.target
        || place.closest('[data-testid=stNumberInput] button, [data-testid=stButton]');
      if (isTurned && sidebar?.contains(place) && !this.sliderOf(place)) this.unsure = this.mark()?.id;
    });
    this.watch = new MutationObserver(changes => {
      for (const {target} of changes) {
        if (this.hand && this.sliderOf(target) === this.hand) this.show(this.hand, stopOf(target));
      }
    });
    this.watch.observe(document.body, {subtree: true, attributeFilter: ['aria-valuetext']});
  }

  take({sliders, places, style, part}, setStateValue) {
    Object.assign(this, {sliders, places, style, setStateValue});
    if ('number' in this.asked && part.answers !== this.asked.number) return;  // it was asked something else since then
    this.asked.slider ??= part.slider;
    const {slider, group, start, isSearched, first, next, isLast, stops, frames} = part;
    let known = this.known.get(slider);
    if (known?.group !== group || known.start !== start) {
      this.known.set(slider, known = {slider, group, start, isSearched, next: 0, isWhole: false, stops: {}});
    }
    if (known.isSearched !== isSearched) Object.assign(known, {isSearched, next: 0});  // those here serve until then
    if (first === known.next) {
      for (const [stop, number] of Object.entries(stops)) known.stops[stop] = frames[number];
      Object.assign(known, {next, isWhole: known.isWhole || isLast});
    }
    if (slider === this.asked.slider) this.ask(slider);
  }

  // Tell the server which slider the hand is near, and what of it is here.
  ask(slider) {
    const {group = null, start = null, isSearched = null, next = 0} = this.known.get(slider) ?? {};
    const has = {slider, group, start, isSearched, next};
    if (Object.entries(has).every(([name, value]) => this.asked[name] === value)) return;
    this.asked = {...has, number: Math.random()};
    this.setStateValue('has', this.asked);
  }

  leave() {
    this.left.abort();
    this.watch.disconnect();
    this.hide();
  }

  sliderOf(element) {
    const key = keyOf(element);
    return this.sliders?.includes(key) ? key : null;
  }

  // Ask the server for what a slider leads to when the hand comes near it.
  approach(slider) {
    if (slider && slider !== this.asked.slider) this.ask(slider);
  }

  // Whether what this slider leads to was made for what the server shows, with all other sliders as they stand.
  isKnown(slider) {
    const now = this.mark();
    return now && this.unsure !== now.id && now.groups[slider] !== ''
      && this.known.get(slider)?.group === now.groups[slider]
      && this.sliders.every(other => other === slider || (standing(other) ?? now.at[other]) === now.at[other]);
  }

  // Whether all stops of this slider are here, and as isKnown.
  isWhole(slider) {
    return this.isKnown(slider) && this.known.get(slider).isWhole;
  }

  show(slider, stop) {
    const frame = this.isKnown(slider) && this.known.get(slider).stops[stop];
    if (!frame || stop === this.mark().at[slider]) return this.hide();
    if (!Object.values(this.places).every(place)) return this.hide();
    if (this.drawn?.frame === frame && this.drawn.slider === slider && this.drawn.stop === stop) return;
    this.drawn ??= new Drawn(this.places, this.style);
    this.drawn.draw(frame, slider, stop);
    if (!this.waits) this.wait();
  }

  // Until the server has drawn the same, or something that this slider was not played for.
  wait() {
    this.waits = requestAnimationFrame(() => {
      this.waits = null;
      if (!this.drawn) return;
      if (!this.isKnown(this.drawn.slider) || this.drawn.isCaughtUp(this.mark())) this.hide();
      else this.wait();
    });
  }

  // The name of what the server's figure shows, where the sliders then stand, and what each leads to from there.
  mark() {
    return plotIn(this.places?.timeline)?.layout?.meta;
  }

  hide() {
    this.drawn?.remove();
    this.drawn = null;
    cancelAnimationFrame(this.waits);
    this.waits = null;
  }
}

const place = key => document.querySelector(`.st-key-${key}`);
const plotIn = key => place(key)?.querySelector('.js-plotly-plot');

// The server's cards and its sentence, copied, and a canvas over its timeline.
class Drawn {
  constructor(places, style) {
    Object.assign(this, {places, style});
    const cards = this.copyOf(places.cards);
    this.cards = [...cards.querySelectorAll('[data-copied=stMetric]')].map(card => [
      innermost(card.querySelector('[data-copied=stMetricValue]')),
      innermost(card.querySelector('[data-copied=stMetricDelta]')),
    ]);
    this.sentence = this.copyOf(places.sentence).querySelector('strong');
    this.canvas = document.createElement('canvas');
    this.canvas.className = 'bucketsim-drawn';
    this.canvas.setAttribute('aria-hidden', 'true');
    const host = place(places.timeline);
    host.style.position = 'relative';  // no attribute that style sheets ask for: all bars would be styled anew
    host.append(this.canvas);
    this.over = layOver(this.canvas, plotIn(places.timeline));
  }

  // A copy in the place of what the server drew, which is hidden meanwhile; tests find that by its name alone.
  copyOf(key) {
    const copy = document.createElement('div');
    copy.className = 'bucketsim-dragged';
    copy.append(...[...place(key).children].map(child => child.cloneNode(true)));
    for (const element of copy.querySelectorAll('[data-testid], [id]')) {
      element.dataset.copied = element.dataset.testid;
      element.removeAttribute('data-testid');
      element.removeAttribute('id');
    }
    place(key).append(copy);
    place(key).dataset.dragged = '';
    return copy;
  }

  draw(text, slider, stop) {
    Object.assign(this, {slider, stop, frame: text});
    const frame = JSON.parse(text);
    frame.cards.forEach(([value, below], number) => {
      const [high, low] = this.cards[number];
      high.textContent = value;
      if (low) low.textContent = below ?? '';
    });
    this.sentence.textContent = frame.sentence;
    drawTimeline(this.over, frame, this.style);
  }

  // The server has drawn the same, the gain's card last; or nothing is there any more.
  isCaughtUp(now) {
    const gain = [...place(this.places.cards)?.querySelectorAll('[data-testid=stMetricValue]') ?? []].at(-1);
    return !this.canvas.isConnected || !now || (now.at[this.slider] === this.stop && gain?.textContent !== '…');
  }

  remove() {
    document.querySelectorAll('.bucketsim-dragged, .bucketsim-drawn').forEach(each => each.remove());
    document.querySelectorAll('[data-dragged]').forEach(each => delete each.dataset.dragged);
  }
}

const innermost = element => {
  while (element?.firstElementChild) element = element.firstElementChild;
  return element;
};
