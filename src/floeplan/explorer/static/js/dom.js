/* DOM helpers and number formats. Table text is inserted as text nodes only: nothing here accepts HTML. */
(function (F) {
    "use strict";

    const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    const numbers = new Intl.NumberFormat("en");
    const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

    /** An element: properties are attributes, except `on` (listeners) and `style` (by property); children are text or nodes. */
    F.el = function (tag, properties, ...children) {
        const made = document.createElement(tag);
        for (const [name, value] of Object.entries(properties || {})) {
            if (value === null || value === undefined || value === false) continue;
            if (name === "on")
                for (const [event, listener] of Object.entries(value)) made.addEventListener(event, listener);
            else if (name === "style") Object.assign(made.style, value);
            else if (name === "value") made.value = value;
            else made.setAttribute(name, value === true ? "" : value);
        }
        F.add(made, ...children);
        return made;
    };

    F.add = function (parent, ...children) {
        for (const child of children.flat(Infinity)) {
            if (child === null || child === undefined || child === false) continue;
            parent.append(child instanceof Node ? child : document.createTextNode(String(child)));
        }
        return parent;
    };

    F.fill = function (parent, ...children) {
        parent.replaceChildren();
        return F.add(parent, ...children);
    };

    F.count = (number) => (number === null || number === undefined ? "–" : numbers.format(number));
    /** A number in few digits; B would read as bytes. */
    F.about = (number) =>
        Math.abs(number) < 10000 ? numbers.format(number) : short.format(number).replace("B", " bn").replace("T", " tn");
    F.counted = (number, noun) => `${F.count(number)} ${noun}${number === 1 ? "" : "s"}`;

    F.bytes = function (size) {
        if (size === null || size === undefined) return "–";
        let value = size,
            unit = 0;
        while (Math.abs(value) >= 1024 && unit < UNITS.length - 1) {
            value /= 1024;
            unit += 1;
        }
        return unit === 0
            ? `${size} B`
            : `${value.toFixed(value < 100 && !Number.isInteger(value) ? 1 : 0)} ${UNITS[unit]}`;
    };

    /** A percentage; only zero is shown as 0 %, and only all as 100 %. */
    F.percent = function (part, whole) {
        if (!whole) return "";
        const share = (100 * part) / whole;
        if (share === 0 || share >= 99.95) return part < whole && share > 0 ? "99.9 %" : `${share.toFixed(0)} %`;
        return share >= 10 ? `${share.toFixed(0)} %` : `${Number(share.toPrecision(2))} %`;
    };

    F.time = (ms) => (ms ? new Date(ms).toISOString().slice(0, 16).replace("T", " ") : "–");
    F.milliseconds = (ms) => (ms < 1000 ? `${Math.max(1, Math.round(ms))} ms` : `${(ms / 1000).toFixed(1)} s`);
    F.tail = (path) => path.slice(path.lastIndexOf("/") + 1);
    /** A file name shortened in the middle: the number of the task begins it or follows the id of the job, and the
     * number of the file ends it. */
    F.brief = (path) => {
        const name = F.tail(path);
        return name.length > 40 ? `${name.slice(0, 24)}…${name.slice(-14)}` : name;
    };
    F.partition = (values) =>
        Object.entries(values)
            .map(([name, value]) => `${name}=${value}`)
            .join(", ") || "–";
    F.specClass = (specId) => `spec-${((specId % 8) + 8) % 8}`;

    F.dot = (specId) => F.el("span", { class: `dot ${F.specClass(specId)}`, "aria-hidden": "true" });
    F.tag = (kind, text) => F.el("span", { class: `tag ${kind}` }, text);
    F.note = (text, kind) => F.el("p", { class: `note ${kind || ""}` }, text);

    /** A card with a title; `aside` is on its right. */
    F.card = function (title, options, ...children) {
        const heading = F.el("h2", { id: options.id }, title);
        const subtitle = options.subtitle ? F.el("span", { class: "soft small" }, options.subtitle) : null;
        const aside = options.aside ? F.el("div", { class: "aside" }, options.aside) : null;
        return F.el(
            "section",
            { class: `card ${options.class || ""}`, "aria-label": title },
            F.el("header", {}, heading, subtitle, aside),
            ...children,
        );
    };

    /** A table: `columns` are {name, num, text}; rows are arrays of texts or nodes, or {cells, class}. */
    F.table = function (label, columns, rows) {
        const kind = (column) => (column.num ? "num" : column.text ? "text" : null);
        const head = F.el(
            "tr",
            {},
            columns.map((column) => F.el("th", { scope: "col", class: kind(column) }, column.name)),
        );
        const body = rows.map((row) => {
            const cells = Array.isArray(row) ? row : row.cells;
            return F.el(
                "tr",
                { class: row.class },
                cells.map((cell, at) => F.el("td", { class: kind(columns[at]) }, cell)),
            );
        });
        const table = F.el("table", { "aria-label": label }, F.el("thead", {}, head), F.el("tbody", {}, body));
        return F.el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, table);
    };

    /** Partition specs without live files, folded away. */
    F.folded = function (number, content) {
        const text = `${F.counted(number, "partition spec")} without live files`;
        return F.el("details", { class: "unused-specs" }, F.el("summary", {}, text), content);
    };

    F.facts = function (pairs) {
        return F.el(
            "dl",
            { class: "facts" },
            pairs.map(([name, value, more]) =>
                F.el(
                    "div",
                    {},
                    F.el("dt", {}, name),
                    F.el("dd", {}, value, more ? F.el("small", {}, ` ${more}`) : null),
                ),
            ),
        );
    };

    /** A command to copy. */
    F.command = function (text) {
        const button = F.el(
            "button",
            {
                type: "button",
                on: {
                    click: async () => {
                        try {
                            await navigator.clipboard.writeText(text);
                            button.textContent = "Copied";
                        } catch {
                            button.textContent = "Select and copy it";
                        }
                    },
                },
            },
            "Copy",
        );
        return F.el("div", { class: "command" }, F.el("code", { tabindex: "0" }, text), button);
    };

    /** A choice of one among few, as radio buttons. */
    F.modes = function (label, name, choices, chosen, changed) {
        return F.el(
            "div",
            { class: "modes", role: "radiogroup", "aria-label": label },
            choices.map(([value, text, disabled]) =>
                F.el(
                    "label",
                    {},
                    F.el("input", {
                        type: "radio",
                        name,
                        value,
                        checked: value === chosen,
                        disabled: disabled || false,
                        on: { change: () => changed(value) },
                    }),
                    F.el("span", {}, text),
                ),
            ),
        );
    };

    F.say = (text) => {
        document.getElementById("live").textContent = text;
    };
})((window.Floeplan = window.Floeplan || {}));
