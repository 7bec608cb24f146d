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

// Whether a line says what the board can show; what it cannot, stays as it was typed.
function shown(line) {
  const [name, target] = line.trim().split(/\s+/);
  const groups = [...(dialog?.querySelectorAll("option") ?? [])].map((each) => each.value);
  return homes.has(name) && groups.includes(target);
}

function write() {
  if (!moves) return;
  const kept = moves.value.split("\n").filter((line) => line.trim() && !shown(line));
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

// Puts a partition where it is to go; a group that the board does not show is only written down.
function place(chip, target) {
  const slot = chip.closest(".slot");
  const there = [...document.querySelectorAll(".slot")].find(
    (each) => each.dataset.topic === slot.dataset.topic && each.dataset.group === target);
  if (there) {
    delete chip.dataset.target;
    there.append(chip.closest("li"));
  } else {
    chip.dataset.target = target;
  }
}

// Lines that are typed, or that come back with a plan that was refused, are on the board, too.
function read() {
  const chips = new Map();
  document.querySelectorAll(".slot [data-partition]").forEach((chip) => {
    chips.set(`${chip.closest(".slot").dataset.topic}/${chip.dataset.partition}`, chip);
  });
  const groups = new Set([...dialog.querySelectorAll("option")].map((each) => each.value));
  const targets = new Map();
  moves.value.split("\n").forEach((line) => {
    const [name, target] = line.trim().split(/\s+/);
    if (chips.has(name) && groups.has(target)) targets.set(name, target);
  });
  chips.forEach((chip, name) => {
    const target = targets.get(name) ?? homes.get(name);
    place(chip, target);
    chip.classList.toggle("moved", homes.get(name) !== target);
  });
}

moves?.addEventListener("change", read);
if (moves?.value) read();

dialog?.addEventListener("close", () => {
  if (dialog.returnValue !== "move" || !chosen) return;
  place(chosen, dialog.querySelector("select").value);
  write();
  chosen.focus();
});
