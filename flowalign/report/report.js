// Charts that tell their values, and the filters of the gallery. The page is complete without it.
"use strict";

(() => {
  const tip = document.querySelector(".tip");

  function show(chart, place) {
    const { steps, places, rows } = chart.told;
    const x = places[place];
    const guide = chart.querySelector(".guide");
    guide.setAttribute("x1", x);
    guide.setAttribute("x2", x);
    chart.classList.add("told-now");
    chart.place = place;
    tip.replaceChildren(line("b", `iteration ${steps[place]}`));
    for (const row of rows) {
      if (row.values[place]) tip.append(line("span", `${row.label} ${row.values[place]}`));
    }
    tip.hidden = false;
    const box = chart.getBoundingClientRect();
    const left = box.left + (x / chart.viewBox.baseVal.width) * box.width;
    const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
    tip.style.left = `${Math.max(8, Math.min(left + 10, room)) + window.scrollX}px`;
    tip.style.top = `${box.top + 8 + window.scrollY}px`;
  }

  function line(name, words) {
    const made = document.createElement(name);
    made.textContent = words;
    return made;
  }

  function hide(chart) {
    chart.classList.remove("told-now");
    tip.hidden = true;
  }

  function nearest(places, x) {
    let best = 0;
    places.forEach((place, i) => {
      if (Math.abs(place - x) < Math.abs(places[best] - x)) best = i;
    });
    return best;
  }

  for (const chart of document.querySelectorAll("svg.chart")) {
    const { steps, places, rows } = chart.dataset;
    chart.told = { steps: JSON.parse(steps), places: JSON.parse(places), rows: JSON.parse(rows) };
    const last = chart.told.places.length - 1;
    chart.place = last;
    chart.addEventListener("pointermove", (event) => {
      const box = chart.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * chart.viewBox.baseVal.width;
      show(chart, nearest(chart.told.places, x));
    });
    chart.addEventListener("pointerleave", () => hide(chart));
    chart.addEventListener("blur", () => hide(chart));
    chart.addEventListener("keydown", (event) => {
      const moves = { ArrowLeft: chart.place - 1, ArrowRight: chart.place + 1, Home: 0, End: last };
      if (event.key === "Escape") hide(chart);
      if (!(event.key in moves)) return;
      event.preventDefault();
      show(chart, Math.max(0, Math.min(last, moves[event.key])));
    });
  }

  const list = document.querySelector(".gallery");
  if (!list) return;
  const cards = [...list.children];
  const chosen = { sign: "all", task: "all", sort: "order" };
  const orders = {
    order: (a, b) => a.dataset.place - b.dataset.place,
    gain: (a, b) => b.dataset.change - a.dataset.change || orders.order(a, b),
    loss: (a, b) => a.dataset.change - b.dataset.change || orders.order(a, b),
  };

  function arrange() {
    let seen = 0;
    for (const card of cards.sort(orders[chosen.sort])) {
      const fits = (name) => chosen[name] === "all" || card.dataset[name] === chosen[name];
      card.hidden = !(fits("sign") && fits("task"));
      seen += !card.hidden;
      list.append(card);
    }
    document.querySelector(".none").hidden = seen > 0;
  }

  for (const button of document.querySelectorAll("button[data-control]")) {
    button.addEventListener("click", () => {
      chosen[button.dataset.control] = button.dataset.value;
      for (const other of button.parentElement.children) {
        other.setAttribute("aria-pressed", String(other === button));
      }
      arrange();
    });
  }
  document.querySelector(".controls").hidden = false;
})();
