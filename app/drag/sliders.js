// Streamlit's sliders, by the key of their widget.

const keyOf = element => element?.closest?.('[class*="st-key-"]')?.className.match(/st-key-(\S+)/)?.[1];
const stopOf = input => input.getAttribute('aria-valuetext');
// Null where it is folded away, so that no hand moves it.
const standing = slider => {
  const input = document.querySelector(`.st-key-${slider} [aria-valuetext]`);
  return input && stopOf(input);
};
