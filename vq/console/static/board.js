// The board of allocation: partitions are dragged, or moved with a dialog; both write lines into
// the field with the moves, which the server judges.

const moves = document.querySelector("[data-moves]");
const dialog = document.getElementById("move-to");
let chosen = null;

// Where each partition was when the page came.
const homes = new Map();
document.querySelectorAll(".slot").forEach((slot) => {
  slot.querySelectorAll("[data-partition]").forEach((chip) => {
    homes.set(`${slot.dataset.topic}/${chip.dataset.partition}`, slot.dataset.group);
  });
});

function write() {
  if (!moves) return;
  const kept = moves.value.split("\n").filter((line) => line.trim() && !homes.has(line.trim().split(" ")[0]));
  const lines = [];
  document.querySelectorAll(".slot").forEach((slot) => {
    slot.querySelectorAll("[data-partition]").forEach((chip) => {
      const name = `${slot.dataset.topic}/${chip.dataset.partition}`;
      const target = chip.dataset.target || slot.dataset.group;
      chip.classList.toggle("moved", homes.get(name) !== target);
      if (homes.get(name) !== target) lines.push(`${name} ${target}`);
    });
  });
  moves.value = [...kept, ...lines].join("\n");
}

if (moves && window.Sortable) {
  document.querySelectorAll(".slot").forEach((slot) => {
    new Sortable(slot, {
      group: slot.dataset.topic, draggable: "li", animation: 0, forceFallback: true,
      onEnd: (event) => { delete event.item.firstElementChild.dataset.target; write(); },
    });
  });
}

document.addEventListener("click", (event) => {
  const chip = event.target instanceof Element ? event.target.closest(".slot [data-partition]") : null;
  if (!chip || !moves || !dialog) return;
  chosen = chip;
  const slot = chip.closest(".slot");
  dialog.querySelector("[data-what]").textContent = `${slot.dataset.topic}/${chip.dataset.partition}`;
  dialog.querySelector("select").value = chip.dataset.target || slot.dataset.group;
  dialog.returnValue = "";
  dialog.showModal();
});

dialog?.addEventListener("close", () => {
  if (dialog.returnValue !== "move" || !chosen) return;
  const target = dialog.querySelector("select").value;
  const slot = chosen.closest(".slot");
  const there = [...document.querySelectorAll(".slot")].find(
    (each) => each.dataset.topic === slot.dataset.topic && each.dataset.group === target);
  if (there) {
    delete chosen.dataset.target;
    there.append(chosen.closest("li"));
  } else {
    chosen.dataset.target = target;
  }
  write();
  chosen.focus();
});
