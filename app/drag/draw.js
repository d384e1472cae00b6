// Puts the canvas over plotly's lanes, whose legend above stays; what drawTimeline needs of them, asked once, as
// asking lays the page out.
function layOver(canvas, plot) {
  const {_size: size, font} = plot._fullLayout;
  const frameOf = plot.getBoundingClientRect();
  const host = canvas.parentElement.getBoundingClientRect();
  const width = frameOf.width, height = frameOf.height - size.t, scale = window.devicePixelRatio;
  Object.assign(canvas.style, {
    left: `${frameOf.left - host.left}px`, top: `${frameOf.top - host.top + size.t}px`,
    width: `${width}px`, height: `${height}px`,
  });
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const pen = canvas.getContext('2d');
  pen.scale(scale, scale);
  return {
    pen, width, height, font, l: size.l, w: size.w, h: size.h, text: getComputedStyle(plot).color,
    paper: getComputedStyle(document.querySelector('[data-testid=stApp]')).backgroundColor,
    hasPath: plot.data.some(trace => trace.name === 'critical path'),
  };
}

// The lanes as plotly draws them, in its place and to its measures.
function drawTimeline({pen, width, height, font, l, w, h, text, paper, hasPath}, frame, style) {
  pen.fillStyle = paper;
  pen.fillRect(0, 0, width, height);
  pen.font = `${font.size}px ${font.family}`;

  const until = frame.until, x = at => l + at / until * w;
  const cell = (x(frame.sync) - l) / style.cells, band = h / frame.lanes.length;
  if (frame.sync > frame.end) {
    pen.fillStyle = style.exposed;
    pen.fillRect(x(frame.end), 0, x(frame.sync) - x(frame.end), h);
  }
  pen.fillStyle = text;
  drawAxis(pen, {l, h, until, x, size: font.size, width: w, title: style.axis});
  pen.textBaseline = 'middle';
  pen.textAlign = 'right';
  frame.lanes.forEach((lane, row) => pen.fillText(lane, l - 9, (row + 0.5) * band));

  const hatches = new Map();  // by colour and pattern
  frame.lanes.forEach((lane, row) => {
    const runs = frame.runs[row], top = row * band + band / 8, high = band * 0.75;
    const isLabelled = lane.startsWith('communication') && frame.few;
    const edge = runs.length <= 600 ? 0.5 : 0;
    for (let at = 0, index = 0; index < runs.length; index += 2) {
      const kind = runs[index], left = l + at * cell, wide = runs[index + 1] * cell;
      at += runs[index + 1];
      if (kind < 0) continue;
      const bucket = Math.floor(kind / style.patterns.length) - 1;
      const colour = bucket < 0 ? style.neutral : style.colours[bucket % style.colours.length];
      pen.fillStyle = colour;
      pen.fillRect(left, top, Math.max(wide - edge, 0.5), high);
      const pattern = style.patterns[kind % style.patterns.length];
      if (pattern) {
        if (!hatches.has(colour + pattern)) hatches.set(colour + pattern, hatch(pen, pattern, over(colour)));
        pen.fillStyle = hatches.get(colour + pattern);
        pen.fillRect(left, top, Math.max(wide - edge, 0.5), high);
      }
      if (isLabelled && bucket >= 0) drawNumber(pen, bucket, left, wide, top + high / 2, colour, font);
    }
  });
  if (hasPath) {
    pen.fillStyle = style.path;
    for (const [row, first, cells] of frame.marks) {
      pen.fillRect(l + first * cell, row * band + 0.02 * band, cells * cell, 0.08 * band);
    }
  }
  drawInstant(pen, x(frame.end), h, style.instant, []);
  if (frame.sync > frame.end) drawInstant(pen, x(frame.sync), h, style.instant, [2, 3]);
}

function drawAxis(pen, {l, h, until, x, size, width, title}) {
  const least = until / Math.max(2, width / 90), power = 10 ** Math.floor(Math.log10(least));
  const step = [1, 2, 5, 10].map(times => times * power).find(each => each >= least);
  pen.textAlign = 'center';
  pen.textBaseline = 'top';
  for (let at = 0; at <= until; at += step) {
    pen.fillText(String(Number(at.toPrecision(6))), x(at), h + size);
  }
  pen.fillText(title, l + width / 2, h + 2.8 * size);
}

function drawNumber(pen, bucket, left, wide, middle, colour, font) {
  const normal = pen.font;
  pen.font = `bold ${font.size}px ${font.family}`;
  if (pen.measureText(bucket).width + 4 <= wide) {
    pen.fillStyle = over(colour);
    pen.textAlign = 'center';
    pen.textBaseline = 'middle';
    pen.fillText(bucket, left + wide / 2, middle);
  }
  pen.font = normal;
}

function drawInstant(pen, at, h, colour, dash) {
  pen.strokeStyle = colour;
  pen.lineWidth = 2;
  pen.setLineDash(dash);
  pen.beginPath();
  pen.moveTo(at, 0);
  pen.lineTo(at, h);
  pen.stroke();
  pen.setLineDash([]);
}

// What reads on a bar of that colour.
function over(colour) {
  const [red, green, blue] = [1, 3, 5].map(at => parseInt(colour.slice(at, at + 2), 16));
  return 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? '#444' : '#fff';
}

// A pattern drawn over a bar's own colour; by plotly's names.
function hatch(pen, pattern, colour) {
  const lines = {'/': [[0, 7, 7, 0], [-1, 1, 1, -1], [6, 8, 8, 6]], '|': [[3.5, 0, 3.5, 7]], '-': [[0, 3.5, 7, 3.5]]};
  lines.x = [[0, 0, 7, 7], ...lines['/']];
  const tile = document.createElement('canvas');
  tile.width = tile.height = 7;
  const tilePen = tile.getContext('2d');
  tilePen.strokeStyle = tilePen.fillStyle = colour;
  tilePen.globalAlpha = 0.8;
  tilePen.lineWidth = 1.2;
  if (pattern === '.') {
    tilePen.beginPath();
    tilePen.arc(3.5, 3.5, 2, 0, 7);
    tilePen.fill();
  }
  for (const [fromX, fromY, toX, toY] of lines[pattern] ?? []) {
    tilePen.beginPath();
    tilePen.moveTo(fromX, fromY);
    tilePen.lineTo(toX, toY);
    tilePen.stroke();
  }
  return pen.createPattern(tile, 'repeat');
}
