// SPDX-License-Identifier: MIT
// Sorts a table by the column whose heading is pressed: numbers from the largest down at first, text
// in the order of its letters; pressed again, the other way round.

function figure(cell) {
  const found = /^[+-]?\d[\d,]*(\.\d+)?(e[+-]?\d+)?/.exec(cell.textContent.trim());
  return found ? Number(found[0].replaceAll(",", "")) : null;
}

function sortBy(heading) {
  const table = heading.closest("table");
  const at = heading.cellIndex;
  const rows = [...table.tBodies[0].rows];
  const isNumber = at > 0 && rows.some((row) => figure(row.cells[at]) !== null);
  const before = heading.getAttribute("aria-sort");
  const falling = before === "none" ? isNumber : before === "ascending";
  const compare = (a, b) => {
    if (!isNumber) {
      return a.cells[at].textContent.localeCompare(b.cells[at].textContent);
    }
    const [x, y] = [figure(a.cells[at]), figure(b.cells[at])];
    return x === null || y === null ? (x === null) - (y === null) : x - y;
  };
  const isAbsent = (row) => isNumber && figure(row.cells[at]) === null;
  rows.sort((a, b) => isAbsent(a) - isAbsent(b) || (falling ? compare(b, a) : compare(a, b)));
  table.tBodies[0].append(...rows);
  for (const other of heading.parentElement.cells) other.setAttribute("aria-sort", "none");
  heading.setAttribute("aria-sort", falling ? "descending" : "ascending");
}

for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => sortBy(button.parentElement));
}
