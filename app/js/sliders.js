// Streamlit's sliders, by the key of their widget; and what all that hear hands and pages have.

const place = key => document.querySelector(`.st-key-${key}`);
const keyOf = element => element?.closest?.('[class*="st-key-"]')?.className.match(/st-key-(\S+)/)?.[1];
// What a slider says; null where it is folded away, so that no hand moves it.
const standing = slider => place(slider)?.querySelector('[aria-valuetext]')?.getAttribute('aria-valuetext') ?? null;

class Listener {
  left = new AbortController();

  // One for all payloads of a component, which are taken by `take`.
  static mount(component, host) {
    const one = host.listener ??= new this(host);
    const turn = one.turn = {};
    one.take(component);
    return () => {
      if (one.turn !== turn) return;  // a later call has it
      one.left.abort();
      one.watch.disconnect();
      one.stop();
      delete host.listener;
    };
  }

  on(kinds, heard) {
    const how = {capture: true, passive: true, signal: this.left.signal};
    kinds.split(' ').forEach(kind => window.addEventListener(kind, heard, how));
  }

  // Whenever a slider says something else.
  onMoves(heard) {
    this.watch = new MutationObserver(heard);
    this.watch.observe(document.body, {subtree: true, attributeFilter: ['aria-valuetext']});
  }
}
