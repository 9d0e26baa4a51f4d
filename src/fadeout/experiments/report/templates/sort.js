// Nothing here is needed to read the page: it sorts tables, and opens what a link leads to.
"use strict";

function sortable(table) {
  const body = table.tBodies[0];
  for (const head of table.tHead.rows[0].cells) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const falling = head.getAttribute("aria-sort") === "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", falling ? "descending" : "ascending");
      const value = row => row.cells[head.cellIndex].dataset.value ?? "";
      const rows = [...body.rows].sort((one, other) => compare(value(one), value(other), falling ? -1 : 1));
      body.append(...rows);
    });
  }
}

function compare(one, other, direction) {
  if (one === "" || other === "") return (one === "") - (other === "");  // what is missing comes last, always
  const difference = Number(one) - Number(other);
  return direction * (Number.isNaN(difference) ? one.localeCompare(other, "en") : difference);
}

function reveal() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const details = target && target.closest("details");
  if (!details) return;
  for (let one = details; one; one = one.parentElement.closest("details")) one.open = true;
  details.scrollIntoView();
  details.querySelector("summary").focus({ preventScroll: true });
}

for (const table of document.querySelectorAll("table.sortable")) sortable(table);
addEventListener("hashchange", reveal);
addEventListener("click", event => {  // the same link again, after its block was closed
  const link = event.target.closest("a");
  if (link && link.getAttribute("href") === location.hash) reveal();
});
reveal();

// Paper cannot be opened by a click.
let closed = [];
addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll("details:not([open])")];
  for (const details of closed) details.open = true;
});
addEventListener("afterprint", () => { for (const details of closed) details.open = false; });
