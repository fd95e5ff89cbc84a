/* The predicate box: plans as you type, and shows the pyramid, the map and the kept files. */
(function (F) {
    "use strict";

    const PAUSE_MS = 250;
    const MOST_CHIPS = 14;
    const FEW = 25;

    F.views = F.views || {};
    F.views.plan = async function (main, shared) {
        const map = await shared.map();
        const state = { where: shared.where, plan: null, request: null, timer: null };
        const drawn = F.mapCard(map, shared.overview.specs, (cell) => openCell(cell));
        const pyramid = F.el("div", { class: "stack" });
        const details = F.el("div", {});
        const specs = F.el("div", {});
        const files = F.el("div", {});
        const cellFiles = F.el("div", { hidden: true });
        const status = F.el("p", { class: "status", role: "status", "aria-live": "polite" });
        const box = F.el("textarea", {
            id: "where",
            rows: "1",
            spellcheck: "false",
            autocapitalize: "off",
            autocomplete: "off",
            value: state.where,
            placeholder: "a SQL condition, e.g.  region = 'eu' AND ts >= '2024-03-01'",
            readonly: !F.source.live,
            on: {
                input: () => later(),
                keydown: (event) => {
                    if (event.key === "Enter" && !event.shiftKey) {
                        event.preventDefault();
                        ask();
                    }
                },
            },
        });

        F.fill(
            main,
            facts(shared.overview),
            F.el(
                "section",
                { class: "card ask", "aria-label": "Predicate" },
                F.el(
                    "label",
                    { for: "where" },
                    F.source.live
                        ? "Predicate, planned as you type"
                        : "Choose a predicate of this report",
                    box,
                ),
                chips(),
                status,
            ),
            F.el(
                "div",
                { class: "pair" },
                F.card("Pruning pyramid", { subtitle: "what a scan reads" }, pyramid),
                F.card("Pruned by condition", { subtitle: "each condition alone" }, details),
            ),
            F.card("By partition spec", { subtitle: "files kept per spec" }, specs),
            drawn.card,
            cellFiles,
            files,
        );
        await ask();

        function later() {
            clearTimeout(state.timer);
            state.timer = setTimeout(() => ask(), PAUSE_MS);
        }

        async function ask(footers) {
            clearTimeout(state.timer);
            if (state.request) state.request.abort();
            const request = (state.request = new AbortController());
            const where = box.value.trim();
            if (F.source.live) status.textContent = "Planning…";
            const started = performance.now();
            try {
                const plan = await F.source.plan(where, footers || "auto", request.signal);
                if (request.signal.aborted) return;
                shared.where = where;
                show(plan, performance.now() - started);
            } catch (failure) {
                if (request.signal.aborted) return;
                box.setAttribute("aria-invalid", "true");
                status.className = "status bad";
                status.textContent = failure.message;
            }
        }

        function show(plan, elapsed) {
            state.plan = plan;
            box.removeAttribute("aria-invalid");
            status.className = "status";
            const summary = plan.summary;
            const took = F.source.live
                ? ` · planned in ${F.milliseconds(summary.planning_ms)}, received after ${F.milliseconds(elapsed)}`
                : ` · planned in ${F.milliseconds(summary.planning_ms)}`;
            F.fill(
                status,
                F.el("b", {}, F.counted(summary.files_kept, "file")),
                ` of ${F.count(summary.files_total)}, `,
                F.el("b", {}, F.bytes(summary.bytes_kept)),
                ` of ${F.bytes(summary.bytes_total)}`,
                took,
            );
            F.fill(
                pyramid,
                F.pyramid(plan),
                plan.footers && summary.row_groups_kept !== null
                    ? F.el("p", { class: "faint small" }, "Row groups and pages are those of the kept files.")
                    : null,
                plan.where && !plan.footers && summary.files_kept && F.source.live
                    ? F.el(
                          "p",
                          { class: "small" },
                          F.el(
                              "button",
                              { type: "button", class: "link", on: { click: () => ask("yes") } },
                              `Also read the footers of these ${F.counted(summary.files_kept, "file")}`,
                          ),
                      )
                    : null,
            );
            F.fill(details, explanation(plan));
            F.fill(specs, F.bySpec(plan));
            F.fill(files, fileCard(plan));
            drawn.show(plan);
        }

        function chips() {
            if (!F.source.live) {
                const given = F.source.predicates();
                const buttons = given.map((where) =>
                    F.el(
                        "button",
                        {
                            type: "button",
                            on: {
                                click: () => {
                                    box.value = where;
                                    ask();
                                },
                            },
                        },
                        where || "every row",
                    ),
                );
                return [
                    F.el("div", { class: "chips" }, buttons),
                    F.el(
                        "p",
                        { class: "faint small" },
                        `A report contains only the predicates it was written with. To plan as you type: floeplan serve ${shared.overview.table}`,
                    ),
                ];
            }
            const buttons = shared.overview.columns
                .slice(0, MOST_CHIPS)
                .map((column) =>
                    F.el(
                        "button",
                        { type: "button", title: column.type, on: { click: () => insert(column.name) } },
                        column.name,
                    ),
                );
            return F.el(
                "div",
                { class: "chips", role: "group", "aria-label": "Columns" },
                F.el("span", { class: "faint small" }, "columns"),
                buttons,
            );
        }

        function insert(name) {
            const text = /^[A-Za-z_][A-Za-z0-9_.]*$/.test(name) ? name : `\`${name}\``;
            const before = box.value.trim();
            box.value = before ? `${before} AND ${text} = ` : `${text} = `;
            box.focus();
        }

        async function openCell(cell) {
            cellFiles.hidden = false;
            const close = F.el(
                "button",
                {
                    type: "button",
                    class: "quiet",
                    on: {
                        click: () => {
                            cellFiles.hidden = true;
                        },
                    },
                },
                "Close",
            );
            const line = `spec ${cell.spec_id} · ${F.counted(cell.files, "file")} · ${F.bytes(cell.bytes)} · ${F.counted(cell.deletes, "delete file")}`;
            const body = F.el("div", {}, F.el("p", { class: "soft" }, "Reading…"));
            F.fill(cellFiles, F.card(cell.where, { subtitle: line, aside: close }, body));
            try {
                const found = await F.source.cell(cell.lane, cell.bin);
                F.fill(body, folded(found.files, "Files of the cell"), more(found.files.length, found.total));
            } catch (failure) {
                F.fill(body, F.note(failure.message));
            }
            cellFiles.scrollIntoView({ block: "nearest", behavior: "smooth" });
        }

        function fileCard(plan) {
            const title = plan.where ? "Kept files" : "Files";
            if (!plan.files.length)
                return F.card(
                    title,
                    {},
                    F.el(
                        "p",
                        { class: "empty" },
                        plan.where
                            ? "No file can contain a matching row: the query reads no data."
                            : "The table has no files.",
                    ),
                );
            const shown = plan.files.map((file) => ({
                ...file,
                file_path: file.path,
                file_size_in_bytes: file.file_size,
            }));
            return F.card(
                title,
                { subtitle: "select one for details" },
                folded(shown, title, plan.where),
                more(plan.files.length, plan.summary.files_kept),
            );
        }

        /** The first files, and the others on request. */
        function folded(found, label, where) {
            if (found.length <= FEW) return listed(found, label, where);
            const place = F.el("div", { class: "stack" }, listed(found.slice(0, FEW), label, where));
            F.add(
                place,
                F.el(
                    "p",
                    {},
                    F.el(
                        "button",
                        { type: "button", on: { click: () => F.fill(place, listed(found, label, where)) } },
                        `Show ${F.count(found.length - FEW)} more`,
                    ),
                ),
            );
            return place;
        }

        function listed(found, label, where) {
            const columns = [
                { name: "File" },
                { name: "Spec" },
                { name: "Partition", text: true },
                { name: "Rows", num: true },
                { name: "Size", num: true },
                { name: "Row groups", num: true },
                { name: "Deletes", num: true },
            ];
            const rows = found.map((file) => [
                F.el(
                    "button",
                    {
                        type: "button",
                        class: "link mono",
                        title: file.file_path,
                        on: { click: () => F.openFile(file.file_path, shared.where) },
                    },
                    F.brief(file.file_path),
                ),
                F.el("span", {}, F.dot(file.spec_id), file.spec_id),
                F.el("code", {}, F.partition(file.partition)),
                where && file.rows_selected !== undefined && file.rows_selected !== file.record_count
                    ? `${F.about(file.rows_selected)} / ${F.about(file.record_count)}`
                    : F.about(file.record_count),
                F.bytes(file.file_size_in_bytes),
                file.tri_state === "true" && where
                    ? F.tag("good", "every row")
                    : file.row_groups
                      ? `${file.row_groups.length} / ${file.row_groups_total}`
                      : "–",
                F.count(file.deletes),
            ]);
            return F.table(label, columns, rows);
        }
    };

    const more = (shown, total) =>
        total > shown ? F.el("p", { class: "faint small" }, `The first ${F.count(shown)} of ${F.count(total)}.`) : null;

    function facts(overview) {
        const deletes = overview.delete_files;
        const files = deletes.position + deletes.vectors + deletes.equality;
        const used = overview.specs.filter((spec) => spec.files).length;
        return F.el(
            "section",
            { class: "card", "aria-label": "The table in numbers" },
            F.facts([
                ["rows", F.about(overview.rows)],
                ["data", F.bytes(overview.sizes.data_bytes), `in ${F.counted(overview.files, "file")}`],
                ["median file", F.bytes(overview.sizes.median)],
                ["specs in use", F.count(used), `of ${F.count(overview.specs.length)}`],
                ["delete files", F.count(files), files ? `${F.about(deletes.rows)} rows` : ""],
                [
                    "manifests",
                    F.count(overview.sizes.data_manifests),
                    overview.sizes.delete_manifests ? `and ${F.count(overview.sizes.delete_manifests)} of deletes` : "",
                ],
                ["snapshots", F.count(overview.snapshots_total)],
            ]),
        );
    }

    function explanation(plan) {
        const parts = [
            F.effects(plan) ||
                F.el(
                    "p",
                    { class: "empty" },
                    "Without a condition, all files are read.",
                ),
        ];
        for (const line of plan.advice) parts.push(F.note(line));
        for (const warning of plan.warnings)
            parts.push(
                F.note(
                    warning.count > 1 ? `${F.count(warning.count)} × ${warning.messages[0]}` : warning.messages[0],
                    "warn",
                ),
            );
        return F.el("div", { class: "stack" }, parts);
    }
})((window.Floeplan = window.Floeplan || {}));
