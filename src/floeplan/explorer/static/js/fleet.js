/* The front page: all tables by health, size, specs, growth, small files, deletes, last and next work. */
(function (F) {
    "use strict";

    const ORDER = ["unreadable", "error", "warning", "info", "healthy"];
    const KINDS = { unreadable: "error", error: "error", warning: "warning", info: "info", healthy: "good" };
    const AT_ONCE = 4;
    const COLUMNS = [
        ["Health", ""],
        ["Table", ""],
        ["Size", "num"],
        ["Growth (7 d)", "num"],
        ["Files", "num"],
        ["Small files", "num"],
        ["Delete files", "num"],
        ["Specs", "num"],
        ["Last work", "text"],
        ["Next work", "text"],
    ];

    /** Show the tables of a session; `open` shows one of them. */
    F.fleet = async function (main, session, open) {
        const names = session.tables;
        if (!names.length) {
            F.fill(
                main,
                F.card(
                    "Tables",
                    {},
                    F.el("p", { class: "empty" }, "The catalog has no tables. Run floeplan demo to create one."),
                ),
            );
            return;
        }
        const found = new Map();
        const body = F.el("tbody", {});
        const facts = F.el("div", {});
        const search = F.el("input", {
            type: "search",
            placeholder: "Filter tables",
            "aria-label": "Filter tables",
            on: { input: () => draw() },
        });
        const head = F.el(
            "tr",
            {},
            COLUMNS.map(([name, kind]) => F.el("th", { scope: "col", class: kind || null }, name)),
        );
        const table = F.el("table", { class: "fleet", "aria-label": "Tables" }, F.el("thead", {}, head), body);
        const progress = F.el("span", { class: "soft small", role: "status" });

        function draw() {
            const wanted = search.value.trim().toLowerCase();
            const shown = names.filter((name) => name.toLowerCase().includes(wanted));
            shown.sort((a, b) => rank(found.get(a)) - rank(found.get(b)) || a.localeCompare(b));
            F.fill(
                body,
                shown.map((name) => line(name, found.get(name), open)),
            );
            F.fill(facts, summary(names, found));
            const waiting = names.length - found.size;
            progress.textContent = waiting ? `looking at ${F.counted(waiting, "more table")}…` : "";
        }

        F.fill(
            main,
            F.card("Tables", { subtitle: F.counted(names.length, "table"), aside: search }, facts, progress),
            F.card("All tables", { class: "fleet-card" }, F.el("div", { class: "scroll" }, table)),
            F.card(
                "Maintenance",
                { subtitle: "what is next, the most valuable work first" },
                F.command("floeplan maintain --explain"),
            ),
        );
        draw();
        const waiting = names.slice();
        const next = async () => {
            while (waiting.length && main.contains(table)) {
                const name = waiting.shift();
                found.set(
                    name,
                    await F.source.fleet(name).catch((failure) => ({
                        health: "unreadable",
                        problem: failure.message,
                        facts: {},
                        work: [],
                    })),
                );
                draw();
            }
        };
        await Promise.all(Array.from({ length: AT_ONCE }, next));
    };

    const rank = (one) => (one ? ORDER.indexOf(one.health) : ORDER.length);

    function summary(names, found) {
        const every = [...found.values()];
        const total = (name) => every.reduce((sum, one) => sum + (one.facts[name] || 0), 0);
        const healthy = every.filter((one) => one.health === "healthy").length;
        const work = every.reduce((sum, one) => sum + one.work.length, 0);
        return F.facts([
            ["Healthy", `${F.count(healthy)}`, `of ${F.counted(every.length, "table")}`],
            ["Size", F.bytes(total("bytes"))],
            ["Growth (7 d)", signed(total("growth"))],
            ["Data files", F.about(total("files")), `${F.about(total("small_files"))} below the target size`],
            ["Delete files", F.about(total("delete_files"))],
            ["Work", F.count(work), "that planners found"],
        ]);
    }

    const signed = (size) => (size === null || size === undefined ? "–" : `${size > 0 ? "+" : ""}${F.bytes(size)}`);

    function line(name, one, open) {
        const link = F.el("button", { type: "button", class: "link mono", on: { click: () => open(name) } }, name);
        if (!one) return row([F.el("span", { class: "faint" }, "…"), link, ...Array(8).fill("")], "waiting");
        const facts = one.facts;
        const messages = one.problem ? [one.problem] : (one.findings || []).map((finding) => finding.message);
        const health = F.el(
            "span",
            { class: `tag ${KINDS[one.health]}`, title: messages.join("\n") || "No problems found." },
            one.health,
        );
        const last = one.last
            ? [`${one.last.kind} ${one.last.status}`, F.el("br"), F.el("small", { class: "soft" }, F.time(one.last.time_ms))]
            : "–";
        const next = one.work.length
            ? [
                  one.work[0].kind,
                  one.work.length > 1 ? F.el("span", { class: "soft" }, ` and ${one.work.length - 1} more`) : null,
                  F.el("br"),
                  F.el("small", { class: "soft" }, one.foreign ? `yields: ${one.foreign}` : one.work[0].reason),
              ]
            : messages.length
              ? F.el("small", { class: "soft" }, (one.waits || []).length ? `waits: ${one.waits[0]}` : messages[0])
              : "–";
        if (one.problem) {
            const problem = { class: "text problem", colspan: COLUMNS.length - 2, "data-label": "" };
            return F.el("tr", {}, F.el("td", {}, health), F.el("td", {}, link), F.el("td", problem, one.problem));
        }
        return row([
            health,
            link,
            F.bytes(facts.bytes),
            signed(facts.growth),
            F.count(facts.files),
            F.count(facts.small_files),
            F.count(facts.delete_files),
            F.count(facts.specs),
            last,
            next,
        ]);
    }

    function row(cells, kind) {
        return F.el(
            "tr",
            { class: kind || null },
            cells.map((cell, at) =>
                F.el("td", { class: COLUMNS[at][1] || null, "data-label": COLUMNS[at][0] }, cell),
            ),
        );
    }
})((window.Floeplan = window.Floeplan || {}));
