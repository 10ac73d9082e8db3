// What all pages share: the search, and what the figures are made of.
"use strict";

// ---- Elements ----

function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) { made.setAttribute(name, value); }
    made.append(...children);
    return made;
}

function svg(tag, attributes = {}, ...children) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) { made.setAttribute(name, value); }
    made.append(...children);
    return made;
}

function svgText(x, y, words, name = "") { return svg("text", {x, y, class: name}, words); }

// A slider over a list of values. change() is called when it moves; value() says where it is.
function slider(parent, label, values, start, change, show = String) {
    const shown = element("output");
    const input = element("input", {type: "range", min: 0, max: values.length - 1, value: values.indexOf(start)});
    const update = () => { shown.textContent = show(values[input.value]); };
    input.addEventListener("input", () => { update(); change(); });
    parent.append(element("label", {}, element("span", {}, label), input, shown));
    update();
    return {value: () => values[input.value]};
}

function button(parent, words, press) {
    const made = element("button", {type: "button"}, words);
    made.addEventListener("click", press);
    parent.append(made);
    return made;
}

// The parts of a figure: its title, a box of controls, a place for the picture and a line of words below it.
function figure(name, title) {
    const parts = {controls: element("div", {class: "controls"}), picture: element("div", {class: "picture"}),
                   words: element("p", {class: "words", "aria-live": "polite"})};
    document.getElementById(`figure-${name}`).append(element("h3", {}, title), parts.controls, parts.picture,
                                                    parts.words);
    return parts;
}

// ---- The search ----

// The sections that have all words, the best first: words in the title count most. Words may be cut short.
function search(sections, query, most = 12) {
    const words = query.toLowerCase().split(/\s+/).filter((word) => word !== "");
    const found = [];
    for (const section of words.length > 0 ? sections : []) {
        const title = section.title.toLowerCase(), text = section.text.toLowerCase();
        let points = 0;
        for (const word of words) {
            const here = (title.includes(word) ? 50 : 0) + Math.min(text.split(word).length - 1, 20);
            points = here > 0 && points >= 0 ? points + here : -1;
        }
        if (points > 0) { found.push({section, points}); }
    }
    found.sort((a, b) => b.points - a.points);
    return found.slice(0, most).map((one) => one.section);
}

// The text around the first of the words.
function excerpt(text, query) {
    const word = query.toLowerCase().split(/\s+/).find((one) => one !== "" && text.toLowerCase().includes(one));
    const at = word === undefined ? 0 : text.toLowerCase().indexOf(word);
    return (at > 40 ? "…" : "") + text.slice(Math.max(0, at - 40), at + 100) + "…";
}

function showFound(box, query) {
    const found = search(SECTIONS, query);
    const links = found.map((section) =>
        element("a", {href: `${section.page}.html#${section.anchor}`}, element("b", {}, section.title),
                element("small", {}, excerpt(section.text, query))));
    if (query.trim() !== "" && found.length === 0) { links.push(element("p", {}, "No section has all these words.")); }
    box.replaceChildren(...links);
}

if (typeof document !== "undefined") {
    const field = document.getElementById("search"), box = document.getElementById("found");
    field.addEventListener("input", () => showFound(box, field.value));
    document.addEventListener("keydown", (event) => {
        if (event.key === "/" && !/INPUT|TEXTAREA/.test(document.activeElement.tagName)) {
            event.preventDefault();
            field.focus();
        }
        if (event.key === "Escape") { field.value = "", showFound(box, ""); }
    });
    box.addEventListener("click", () => { field.value = "", showFound(box, ""); });
    if (matchMedia("(max-width: 60em)").matches) { document.getElementById("contents").open = false; }
}
