"use strict";
(function () {
  const ROW = 28, AHEAD = 12;
  document.querySelectorAll("[data-gates]").forEach(function (box) {
    const sentences = JSON.parse(box.querySelector("script").textContent);
    const slider = box.querySelector("input"), text = box.querySelector(".chosen");
    const rows = box.querySelectorAll("tbody tr");
    function show() {
      const k = Number(slider.value);
      text.textContent = sentences[k];
      slider.setAttribute("aria-valuetext", rows[k].firstChild.textContent);
      rows.forEach(function (row, j) { row.classList.toggle("on", j === k); });
    }
    slider.addEventListener("input", show);
    show();
  });
  document.querySelectorAll("[data-tasks]").forEach(function (box) {
    const data = JSON.parse(box.parentNode.querySelector("script[id$=-data]").textContent);
    const values = data.values, ids = values[0], group = values[data.columns.indexOf(data.groups)];
    const lower = ids.map(function (id) { return String(id).toLowerCase(); });
    const search = box.querySelector("input"), select = box.querySelector("select"), said = box.querySelector("span");
    const pane = box.querySelector(".rows"), body = box.querySelector("tbody"), heads = box.querySelectorAll("thead th");
    let order = ids.map(function (_, k) { return k; }), column = -1, down = false, kept = order;
    function sort() {
      const of = values[column], sign = down ? -1 : 1, text = of.some(function (v) { return typeof v === "string"; });
      const collator = new Intl.Collator("en", {numeric: true});
      order.sort(function (a, b) {
        const x = of[a], y = of[b];
        if (x === null || y === null) return x === y ? a - b : x === null ? 1 : -1;
        return sign * (text ? collator.compare(x, y) : x - y) || a - b;
      });
    }
    function filter() {
      const word = search.value.trim().toLowerCase(), wanted = select.value;
      kept = order.filter(function (k) {
        return (!word || lower[k].includes(word)) && (!wanted || group[k] === wanted);
      });
      said.textContent = kept.length.toLocaleString("en") + " of " + ids.length.toLocaleString("en");
      draw();
    }
    function blank(height) {
      const row = document.createElement("tr"), cell = document.createElement("td");
      row.setAttribute("aria-hidden", "true");
      cell.colSpan = values.length;
      cell.style.cssText = "padding:0;border:0;height:" + height + "px";
      row.append(cell);
      return row;
    }
    function draw() {
      const first = Math.max(0, Math.floor(pane.scrollTop / ROW) - AHEAD);
      const last = Math.min(kept.length, first + Math.ceil(pane.clientHeight / ROW) + 2 * AHEAD);
      const rows = first ? [blank(first * ROW)] : [];
      for (let j = first; j < last; j++) {
        const row = document.createElement("tr");
        values.forEach(function (of, c) {
          const cell = document.createElement(c ? "td" : "th"), value = of[kept[j]];
          if (!c) { cell.scope = "row"; cell.title = value; }
          cell.textContent = value === null ? "" : value;
          row.append(cell);
        });
        rows.push(row);
      }
      if (last < kept.length) rows.push(blank((kept.length - last) * ROW));
      body.replaceChildren.apply(body, rows);
    }
    function by(c, falling) {
      down = falling;
      column = c;
      heads.forEach(function (other, k) {
        other.setAttribute("aria-sort", k === c ? (down ? "descending" : "ascending") : "none");
      });
      sort();
      pane.scrollTop = 0;
      filter();
    }
    heads.forEach(function (head, c) {
      head.firstChild.addEventListener("click", function () { by(c, column === c && !down); });
    });
    search.addEventListener("input", function () { pane.scrollTop = 0; filter(); });
    select.addEventListener("change", function () { pane.scrollTop = 0; filter(); });
    pane.addEventListener("scroll", function () { requestAnimationFrame(draw); });
    box.hidden = false;
    const ends = box.nextElementSibling;
    if (ends && ends.className === "ends") ends.style.display = "none";
    by(data.columns.indexOf(data.order), true);
  });
})();
