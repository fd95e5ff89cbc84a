/* One file in a dialog: why it is kept or pruned, its bounds against the predicate, its row groups and its deletes. */
(function (F) {
    "use strict";

    const KIND = { "no row": "bad", "some rows": "accent", "every row": "good" };

    F.openFile = async function (path, where) {
        const dialog = document.getElementById("file-dialog");
        const close = F.el(
            "button",
            { type: "button", "aria-label": "Close", on: { click: () => dialog.close() } },
            "Close",
        );
        const body = F.el(
            "div",
            { class: "inside" },
            F.el("header", {}, F.el("h2", { id: "file-title", class: "mono" }, F.tail(path)), close),
            F.el("p", { class: "soft" }, "Reading…"),
        );
        F.fill(dialog, body);
        dialog.showModal();
        try {
            const file = await F.source.file(path, where);
            body.lastChild.remove();
            F.add(body, content(file));
        } catch (failure) {
            body.lastChild.remove();
            F.add(body, F.note(failure.message, "bad"));
        }
    };

    function content(document) {
        const file = document.file;
        return [
            F.el("p", { class: "faint small mono" }, file.file_path),
            document.where ? decision(document.why) : null,
            F.facts([
                ["spec", F.el("span", {}, F.dot(file.spec_id), String(file.spec_id))],
                ["rows", F.about(file.record_count)],
                ["size", F.bytes(file.file_size_in_bytes)],
                ["sequence number", F.count(file.sequence_number)],
                ["delete files", F.count(file.deletes)],
            ]),
            F.el("p", {}, F.el("span", { class: "soft" }, "partition "), F.el("code", {}, F.partition(file.partition))),
            conditions(document),
            bounds(document),
            rowGroups(document),
            deletes(document),
        ];
    }

    /** Whether the file is read, and the pass, condition and statistic that decide it. */
    function decision(why) {
        const result = why.kept ? F.tag("good", "kept") : F.tag("bad", `dropped in ${why.pass}`);
        return F.el("p", {}, result, " ", why.reason);
    }

    function conditions(document) {
        if (!document.conjuncts.length) return null;
        const columns = [
            { name: "Condition", text: true },
            { name: "Partition" },
            { name: "Column bounds" },
            { name: "Together" },
        ];
        const rows = document.conjuncts.map((one) => [
            F.el("div", {}, F.el("code", {}, one.predicate), range(one)),
            answer(one.partition),
            answer(one.bounds),
            answer(one.answer),
        ]);
        return [
            F.el("h3", {}, "Why"),
            F.table("Result of each condition for this file", columns, rows),
            document.conjuncts.some((one) => one.range)
                ? F.el(
                      "ul",
                      { class: "legend" },
                      F.el(
                          "li",
                          {},
                          F.el("span", { class: "dot", style: { background: "var(--accent)" } }),
                          "values of the file",
                      ),
                      F.el(
                          "li",
                          {},
                          F.el("span", { class: "dot", style: { background: "var(--wanted)" } }),
                          "values of the predicate",
                      ),
                  )
                : null,
        ];
    }

    /** The file's bounds as a bar over the range of the condition. */
    function range(one) {
        if (!one.range) return null;
        const bar = ([from, to], kind) =>
            F.el("i", { class: kind, style: { left: `${100 * from}%`, width: `max(3px, ${100 * (to - from)}%)` } });
        return F.el(
            "div",
            { class: "range", role: "img", "aria-label": "The file's bounds over the range of the condition" },
            bar(one.range.wanted, "wanted"),
            bar(one.range.file, "held"),
        );
    }

    const answer = (text) => F.tag(KIND[text], text);
    const value = (known) =>
        known === null ? F.el("span", { class: "faint" }, "unknown") : F.el("code", {}, String(known));

    function bounds(document) {
        const columns = [
            { name: "Column" },
            { name: "Type" },
            { name: "From", text: true },
            { name: "To", text: true },
            { name: "Nulls", num: true },
            { name: "NaN", num: true },
        ];
        const row = (one) => [
            F.el("span", {}, one.in_predicate ? F.el("b", {}, one.name) : one.name),
            F.el("span", { class: "soft" }, one.type),
            value(one.lower),
            value(one.upper),
            F.count(one.nulls),
            F.count(one.nans),
        ];
        const used = document.columns.filter((one) => one.in_predicate);
        const others = document.columns.filter((one) => !one.in_predicate);
        const first = used.length
            ? F.table("Bounds of columns in the predicate", columns, used.map(row))
            : null;
        const more = others.length
            ? F.el(
                  "details",
                  { open: !used.length },
                  F.el("summary", {}, F.counted(others.length, "other column")),
                  F.table("Bounds of other columns", columns, others.map(row)),
              )
            : null;
        return [F.el("h3", {}, "Bounds"), first, more];
    }

    function rowGroups(document) {
        const found = document.row_groups;
        const title = F.el("h3", {}, "Row groups");
        if (found.unread) return [title, F.note(`The footer was not read: ${found.unread}`, "warn")];
        const kept = found.groups.filter((group) => group.kept).length;
        const strip = F.el(
            "div",
            { class: "strip", role: "img", "aria-label": `${kept} of ${found.total} row groups are read` },
            found.groups.map((group, at) =>
                F.el("i", {
                    class: !group.kept ? "none" : group.answer === "every row" ? "every" : "some",
                    title: `row group ${at}: ${group.answer}`,
                    style: { flexGrow: String(group.rows) },
                }),
            ),
        );
        const pages = found.pages_total
            ? `, ${F.count(found.pages_kept)} of ${F.counted(found.pages_total, "page")}`
            : "";
        const counts = F.el(
            "p",
            { class: "soft small" },
            `${F.count(kept)} of ${F.counted(found.total, "row group")}${pages}, ${F.counted(found.rows_selected, "row")} to read`,
        );
        return [
            title,
            strip,
            counts,
            F.el("details", {}, F.el("summary", {}, "All row groups"), groupTable(found)),
            found.notes.map((note) => F.el("p", { class: "faint small" }, note)),
        ];
    }

    function groupTable(found) {
        const names = found.groups.length ? Object.keys(found.groups[0].bounds) : [];
        const columns = [
            { name: "#", num: true },
            { name: "Rows", num: true },
            ...names.map((name) => ({ name, text: true })),
            { name: "Answer" },
        ];
        const rows = found.groups.map((group, at) => ({
            class: group.kept ? null : "dropped",
            cells: [
                at,
                F.count(group.rows),
                ...names.map((name) => [value(group.bounds[name].lower), " … ", value(group.bounds[name].upper)]),
                answer(group.kept ? group.answer : "no row"),
            ],
        }));
        return F.table("Row groups", columns, rows);
    }

    function deletes(document) {
        if (!document.deletes.length) return null;
        const columns = [
            { name: "Delete file", text: true },
            { name: "Kind" },
            { name: "Rows", num: true },
            { name: "Sequence", num: true },
        ];
        const rows = document.deletes.map((one) => [
            F.el("span", { class: "mono", title: one.path }, F.tail(one.path)),
            one.kind,
            F.count(one.record_count),
            F.count(one.sequence_number),
        ]);
        return [F.el("h3", {}, "Deletes"), F.table("Delete files that apply", columns, rows)];
    }
})((window.Floeplan = window.Floeplan || {}));
