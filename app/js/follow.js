// While the hand moves a slider, headline and timeline are drawn here from what the server played beforehand.
// The slider is Streamlit's own: the server hears of it by hand.js, and what it draws takes this one's place.
export default component => Follower.mount(component, component.parentElement);

const plotIn = key => place(key)?.querySelector('.js-plotly-plot');

class Follower extends Listener {
  known = new Map();  // by slider: its group, and the frames of its stops that are here
  near = null;        // what was asked for: the slider that the hand came near last, and its group
  hand = null;        // the slider that was touched last, and nothing else since
  unsure = null;      // the id of a state in which another knob was turned that the server has not drawn yet
  drawn = null;       // what is drawn here now: of which slider which stop

  constructor(host) {
    super();
    this.host = host;
    this.on('pointerdown keydown drop', event => {
      this.hand = this.sliderOf(event.target);
      if (!this.hand) this.stop();
    });
    this.on('popstate resize', () => { this.hand = null; this.stop(); });
    this.on('focusin pointerover', ({target}) => {
      const slider = this.sliderOf(target);
      if (slider && !this.isWhole(slider)) this.ask(slider, this.mark?.groups[slider]);
    });
    this.on('input change click', ({target, type}) => {
      const knob = target.closest?.('[role=option]') ? document.activeElement : target;
      const isTurned = type !== 'click' || knob !== target || knob.closest('button');
      if (isTurned && knob.closest?.('.stSidebar') && !this.sliderOf(knob)) this.unsure = this.mark?.id;
    });
    this.onMoves(changes => {
      if (this.hand && changes.some(({target}) => this.sliderOf(target) === this.hand)) this.show(this.hand);
    });
  }

  take({data: {sliders, places, style, slider, group, stops, frames, isWhole}, setStateValue}) {
    Object.assign(this, {sliders, places, style, tell: near => setStateValue('near', near)});
    const each = Object.fromEntries(Object.entries(stops).map(([stop, number]) => [stop, frames[number]]));
    this.known.set(slider, {group, stops: each, isWhole});
    if (!isWhole) this.ask(slider, group);
  }

  // Tell the server which slider the hand is near, and that all of its stops are wanted.
  ask(slider, group) {
    const near = `${slider} ${group}`;
    if (group && near !== this.near) this.tell(this.near = near);
  }

  sliderOf(element) {
    return this.sliders?.find(slider => slider === keyOf(element)) ?? null;
  }

  // The name of what the server's figure shows, where the sliders then stand, and what each leads to from there.
  get mark() { return plotIn(this.places?.timeline)?.layout?.meta; }

  // Whether what this slider leads to was made for what the server shows, with all other sliders as they stand.
  isKnown(slider) {
    const now = this.mark;
    return now && this.unsure !== now.id && now.groups[slider] !== ''
      && this.known.get(slider)?.group === now.groups[slider]
      && this.sliders.every(other => other === slider || (standing(other) ?? now.at[other]) === now.at[other]);
  }
  // And whether all of its stops are here.
  isWhole(slider) { return this.isKnown(slider) && this.known.get(slider).isWhole; }

  show(slider) {
    const stop = standing(slider), frame = this.isKnown(slider) && this.known.get(slider).stops[stop];
    if (!frame || stop === this.mark.at[slider] || !Object.values(this.places).every(place)) return this.stop();
    this.drawn = {slider, stop};
    this.draw(JSON.parse(frame));
    this.waits ??= requestAnimationFrame(() => this.wait());
  }

  // Until the server has drawn the same, the gain's card last, or something that this slider was not played for.
  wait() {
    this.waits = null;
    if (!this.drawn) return;
    const {slider, stop} = this.drawn, gain = [...place(this.places.cards)?.querySelectorAll('.stMetric') ?? []].at(-1);
    const isCaughtUp = this.mark?.at[slider] === stop && gain?.querySelectorAll('p')[1].textContent !== '…';
    if (!this.isKnown(slider) || isCaughtUp || !this.canvas.isConnected) this.stop();
    else this.waits = requestAnimationFrame(() => this.wait());
  }

  // Over the server's texts, which stay as they are beneath; and a canvas over its lanes.
  draw(frame) {
    place(this.places.cards).querySelectorAll('.stMetric').forEach((card, number) => {
      const [, value, below] = card.querySelectorAll('p');
      write(value, frame.cards[number][0]);
      if (below) write(below, frame.cards[number][1] ?? '');
    });
    write(place(this.places.sentence).querySelector('strong'), frame.sentence);
    if (!this.canvas) this.layOver(place(this.places.timeline), plotIn(this.places.timeline));
    drawTimeline(this.over, frame, this.style);
  }

  // Asked once, as asking lays the page out: the lanes' place and measures, below the legend, which stays.
  layOver(host, plot) {
    this.canvas = document.createElement('canvas');
    this.canvas.className = 'bucketsim-drawn';
    this.canvas.setAttribute('aria-hidden', 'true');
    host.style.position = 'relative';  // no attribute that style sheets ask for: all bars would be styled anew
    host.append(this.canvas);
    const frame = plot.getBoundingClientRect(), lanes = plot.querySelector('.nsewdrag').getBoundingClientRect();
    const at = host.getBoundingClientRect(), width = frame.width, height = frame.bottom - lanes.top;
    const box = {left: frame.left - at.left, top: lanes.top - at.top, width, height};
    for (const [name, length] of Object.entries(box)) this.canvas.style[name] = `${length}px`;
    const scale = window.devicePixelRatio, pen = this.canvas.getContext('2d');
    [this.canvas.width, this.canvas.height] = [Math.round(width * scale), Math.round(height * scale)];
    pen.scale(scale, scale);
    const {fontFamily: family, fontSize} = getComputedStyle(plot.querySelector('.xtick text'));
    this.over = {
      pen, width, height, family, size: parseFloat(fontSize), l: lanes.left - frame.left, w: lanes.width, h: lanes.height,
      text: getComputedStyle(plot).color, paper: getComputedStyle(this.host).getPropertyValue('--st-background-color'),
      hasPath: plot.data.some(trace => trace.name === 'critical path'),
    };
  }

  stop() {
    this.drawn = null;
    this.canvas?.remove();
    this.canvas = null;
    document.querySelectorAll('[data-drawn]').forEach(each => delete each.dataset.drawn);
    cancelAnimationFrame(this.waits);
    this.waits = null;
  }
}

const write = (element, text) => { element.parentElement.dataset.drawn = text; };

// The lanes as plotly draws them, in its place and to its measures.
function drawTimeline({pen, width, height, family, size, l, w, h, text, paper, hasPath}, frame, style) {
  const until = frame.until, x = at => l + at / until * w, tau = 2 * Math.PI;
  const band = h / frame.lanes.length;
  const say = (words, at, y, align, base, look = '') => {
    Object.assign(pen, {textAlign: align, textBaseline: base, font: `${look} ${size}px ${family}`});
    pen.fillText(words, at, y);
  };
  const instant = (at, dash) => {
    Object.assign(pen, {strokeStyle: style.instant, lineWidth: 2});
    pen.setLineDash(dash);
    pen.stroke(new Path2D(`M${x(at)} 0V${h}`));
  };
  const hatches = {};  // patterns drawn over a bar's own colour, by both; by plotly's names
  const hatch = (pattern, colour) => hatches[pattern + colour] ??= (() => {
    const strokes = {'/': 'M0 7L7 0M-1 1L1 -1M6 8L8 6', '|': 'M3.5 0V7', '-': 'M0 3.5H7', x: 'M0 7L7 0M0 0L7 7'};
    const tile = new OffscreenCanvas(7, 7), inked = tile.getContext('2d');
    Object.assign(inked, {strokeStyle: colour, fillStyle: colour, globalAlpha: 0.8, lineWidth: 1.2});
    if (pattern === '.') inked.arc(3.5, 3.5, 2, 0, tau), inked.fill();
    else inked.stroke(new Path2D(strokes[pattern]));
    return pen.createPattern(tile, 'repeat');
  })();
  pen.fillStyle = paper;
  pen.fillRect(0, 0, width, height);
  if (frame.sync > frame.end) {
    pen.fillStyle = style.exposed;
    pen.fillRect(x(frame.end), 0, x(frame.sync) - x(frame.end), h);
  }
  pen.fillStyle = text;
  const least = until / Math.max(2, width / 90), power = 10 ** Math.floor(Math.log10(least));
  const step = [1, 2, 5, 10].map(times => times * power).find(each => each >= least);
  for (let at = 0; at <= until; at += step) say(String(Number(at.toPrecision(6))), x(at), h + size, 'center', 'top');
  say(style.axis, l + w / 2, h + 2.8 * size, 'center', 'top');
  frame.lanes.forEach((lane, row) => say(lane, l - 9, (row + 0.5) * band, 'right', 'middle'));

  frame.lanes.forEach((lane, row) => {
    const bars = frame.bars[row], top = row * band + band / 8, high = band * 0.75;
    const isNumbered = lane.startsWith('communication') && frame.few, edge = bars.length <= 300 ? 0.5 : 0;
    for (const [start, end, bucket, pattern] of bars) {
      const left = x(start), wide = x(end) - left;
      const colour = bucket < 0 ? style.neutral : style.colours[bucket % style.colours.length];
      const [red, green, blue] = [1, 3, 5].map(from => parseInt(colour.slice(from, from + 2), 16));
      const ink = 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? '#444' : '#fff';  // reads on it
      for (pen.fillStyle of pattern ? [colour, hatch(pattern, ink)] : [colour]) {
        pen.fillRect(left, top, Math.max(wide - edge, 0.5), high);
      }
      if (isNumbered && bucket >= 0 && 0.7 * size * `${bucket}`.length + 4 <= wide) {
        pen.fillStyle = ink;
        say(bucket, left + wide / 2, top + high / 2, 'center', 'middle', 'bold');
      }
    }
  });
  pen.fillStyle = style.path;
  for (const [row, start, end] of hasPath ? frame.marks : []) {
    pen.fillRect(x(start), row * band + 0.02 * band, x(end) - x(start), 0.08 * band);
  }
  instant(frame.end, []);
  if (frame.sync > frame.end) instant(frame.sync, [2, 3]);
}
