// Asks for the sections every two seconds and replaces those that have changed. What came is parsed as an inert document: scripts in it never run.
const note = document.getElementById("state"), root = document.documentElement, main = document.querySelector("main");
const show = (sections) => {
  const names = Object.keys(sections);
  for (const old of [...main.children]) if (!names.includes(old.id)) old.remove();
  let place = null;
  for (const name of names) {
    let box = [...main.children].find((child) => child.id === name);
    if (!box) { box = document.createElement("section"); box.id = name; }
    if (box.text !== sections[name]) {
      const open = new Map([...box.querySelectorAll("details[id]")].map((one) => [one.id, one.open]));
      box.replaceChildren(...new DOMParser().parseFromString(sections[name], "text/html").body.childNodes);
      for (const one of box.querySelectorAll("details[id]")) if (open.has(one.id)) one.open = open.get(one.id);
      box.text = sections[name];
    }
    const next = place ? place.nextElementSibling : main.firstElementChild;
    if (next !== box) main.insertBefore(box, next);
    place = box;
  }
};
const look = async () => {
  try {
    const answer = await fetch("sections?after=" + encodeURIComponent(root.dataset.version), { cache: "no-store" });
    if (answer.status !== 200) throw new Error(answer.status);
    const found = await answer.json();
    if (found.sections) show(found.sections);
    root.dataset.version = found.version;
    note.textContent = found.time;
    note.classList.remove("lost");
    delete root.dataset.lost;
  } catch (error) {
    if (!root.dataset.lost) note.textContent = "This page's server has ended: the numbers are the last it had. " + note.textContent;
    root.dataset.lost = "yes";
    note.classList.add("lost");
  }
  setTimeout(look, document.hidden ? 10000 : 2000);
};
setTimeout(look, 1000);
