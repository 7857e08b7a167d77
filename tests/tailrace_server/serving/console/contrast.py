"""Computes the contrast of the texts on a page, as WCAG 2 defines it."""

# Returns the texts with a contrast below 4.5, or below 3 if they are large, as [text, contrast].
# A background may be partly transparent: those of the elements behind show through. Disabled controls are exempt.
POOR_TEXTS = """() => {
  const parse = (color) => { const [r, g, b, a = 1] = color.match(/[\\d.]+/g).map(Number); return [r, g, b, a]; };
  const over = (front, back) => front.slice(0, 3).map((one, at) => one * front[3] + back[at] * (1 - front[3]));
  const luminance = (color) => {
    const linear = (one) => (one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = color.map((one) => linear(one / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    if (element === null) return [255, 255, 255];
    const color = parse(getComputedStyle(element).backgroundColor);
    return color[3] === 1 ? color.slice(0, 3) : over(color, behind(element.parentElement));
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.data.trim();
    const element = walker.currentNode.parentElement;
    if (!text || !element.checkVisibility()) continue;
    if (element.closest("[disabled], title, noscript, script, datalist")) continue;
    const style = getComputedStyle(element);
    const back = behind(element);
    const front = over(parse(element instanceof SVGElement ? style.fill : style.color), back);
    const [light, dark] = [luminance(front), luminance(back)].sort((a, b) => b - a);
    const contrast = (light + 0.05) / (dark + 0.05);
    const size = parseFloat(style.fontSize);
    const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (contrast < (isLarge ? 3 : 4.5)) found.push([text, Math.round(contrast * 100) / 100]);
  }
  return found;
}"""
