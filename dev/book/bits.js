// The bits of a number in the formats of training. Click one to flip it.
"use strict";

// name, bits of the exponent, bits of the mantissa, the largest number. Numbers beyond it become infinite in fp32, bf16
// and fp16; in 8 bits the trainer takes the largest number.
const FORMATS = [{name: "fp32", e: 8, m: 23}, {name: "bf16", e: 8, m: 7}, {name: "fp16", e: 5, m: 10},
                 {name: "e4m3", e: 4, m: 3, largest: 448}, {name: "e5m2", e: 5, m: 2, largest: 57344}];

// The value of a text of bits: sign, exponent, mantissa.
function bitsValue(bits, f) {
    const sign = bits[0] === "1" ? -1 : 1, bias = 2 ** (f.e - 1) - 1, top = 2 ** f.e - 1;
    const exponent = parseInt(bits.slice(1, 1 + f.e), 2), mantissa = parseInt(bits.slice(1 + f.e), 2);
    if (f.name === "e4m3" ? exponent === top && mantissa === 2 ** f.m - 1 : exponent === top) {
        return mantissa === 0 ? sign * Infinity : NaN;
    }
    const fraction = mantissa / 2 ** f.m;
    return sign * (exponent === 0 ? fraction * 2 ** (1 - bias) : (1 + fraction) * 2 ** (exponent - bias));
}

// The nearest number of a format, and of two equally near ones the one whose last bit is 0.
function bitsOf(x, f) {
    const bias = 2 ** (f.e - 1) - 1, sign = x < 0 || Object.is(x, -0) ? "1" : "0";
    const size = Math.min(Math.abs(x), f.largest ?? Infinity);
    if (Number.isNaN(x)) { return `0${"1".repeat(f.e + f.m)}`; }
    let exponent = Math.max(Math.floor(Math.log2(size)), 1 - bias);
    if (2 ** exponent > size && exponent > 1 - bias) { exponent--; } // the logarithm was rounded up
    const steps = size / 2 ** (exponent - f.m), low = Math.floor(steps), over = steps - low;
    const rounded = low + (over > 0.5 || (over === 0.5 && low % 2 === 1) ? 1 : 0);
    const code = (exponent + bias - 1) * 2 ** f.m + rounded; // a carry moves on into the exponent
    const most = f.largest === undefined ? (2 ** f.e - 1) * 2 ** f.m : Infinity; // the code of infinity
    return sign + (Number.isFinite(size) ? Math.min(code, most) : most).toString(2).padStart(f.e + f.m, "0");
}

// ---- The figure ----

function bitsFigure() {
    const parts = figure("bits", "The bits of a number: type one, or flip bits");
    const input = element("input", {type: "text", inputmode: "decimal", value: "0.3", "aria-label": "a number"});
    const shown = (x) => Number.isFinite(x) ? String(+x.toPrecision(10)) : String(x);
    const show = () => {
        const x = Number(input.value.replace(",", "."));
        parts.picture.replaceChildren(...FORMATS.map((f) => formatRow(f, x)));
        parts.words.textContent = Number.isNaN(x) && input.value.trim() !== "NaN" ? `'${input.value}' is no number.`
            : "Grey: the sign. Blue: the exponent. Orange: the mantissa. A click on a bit flips it.";
    };
    const formatRow = (f, x) => {
        const bits = bitsOf(x, f), value = bitsValue(bits, f), off = 100 * Math.abs((value - x) / x);
        const boxes = [...bits].map((bit, i) => {
            const part = i === 0 ? "sign" : i <= f.e ? "exponent" : "mantissa";
            const box = element("button", {type: "button", class: `bit ${part}`, "aria-label": `${part} ${bit}`}, bit);
            box.addEventListener("click", () => {
                const flipped = bits.slice(0, i) + (bit === "1" ? "0" : "1") + bits.slice(i + 1);
                input.value = shown(bitsValue(flipped, f)), show();
            });
            return box;
        });
        return element("div", {class: "format"}, element("b", {}, f.name), element("div", {class: "bits"}, ...boxes),
                       element("span", {}, shown(value)),
                       element("small", {}, off > 0 && off < Infinity ? `off by ${+off.toPrecision(2)} %` : ""));
    };
    parts.controls.append(element("label", {}, element("span", {}, "number"), input));
    for (const example of ["0.3", "1.00390625", "0.0001", "448", "70000"]) {
        button(parts.controls, example, () => { input.value = example, show(); });
    }
    input.addEventListener("input", show);
    show();
}

if (typeof document !== "undefined") { bitsFigure(); }
