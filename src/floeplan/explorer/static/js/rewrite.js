/* Dry runs of a rewrite and of a spec upgrade; where writes are allowed, a button that runs them after a confirmation. */
(function (F) {
    "use strict";

    const PAUSE_MS = 350;

    F.views = F.views || {};
    F.views.rewrite = async function (main, shared) {
        const rewriting = F.el("div", { role: "status" });
        const upgrading = F.el("div", { role: "status" });
        const form = F.source.live ? rewriteForm(shared, (request) => preview(request)) : null;
        F.fill(
            main,
            F.card("Rewrite", { subtitle: "dry run" }, form && form.element, rewriting),
            F.card("Upgrade the spec", { subtitle: "by metadata where bounds prove the partition" }, upgrading),
        );
        let running = null;
        await Promise.all([preview(form ? form.request() : {}), upgrade()]);

        async function preview(request) {
            if (running) running.abort();
            const mine = (running = new AbortController());
            F.fill(rewriting, F.el("p", { class: "soft" }, "Planning the rewrite…"));
            try {
                const plan = await F.source.rewrite(request, mine.signal);
                if (!mine.signal.aborted)
                    F.fill(
                        rewriting,
                        drawPlan(plan),
                        writeButton(
                            shared,
                            "rewrite",
                            "Rewrite now…",
                            plan.groups_total,
                            request,
                            `${F.counted(plan.files, "file")} (${F.bytes(plan.bytes)}) will be rewritten into about ${F.count(plan.expected_outputs)}.`,
                        ),
                    );
            } catch (failure) {
                if (!mine.signal.aborted) F.fill(rewriting, F.note(failure.message, "bad"));
            }
        }

        async function upgrade() {
            F.fill(upgrading, F.el("p", { class: "soft" }, "Planning the upgrade…"));
            try {
                const plan = await F.source.upgrade("current");
                F.fill(
                    upgrading,
                    drawUpgrade(plan),
                    writeButton(
                        shared,
                        "upgrade",
                        "Upgrade now…",
                        plan.files_by_metadata + plan.files_by_rewrite,
                        { to: "current" },
                        `${F.counted(plan.files_by_metadata, "file")} will be moved by metadata, ${F.counted(plan.files_by_rewrite, "file")} rewritten.`,
                    ),
                );
            } catch (failure) {
                F.fill(upgrading, F.note(failure.message, "bad"));
            }
        }
    };

    function rewriteForm(shared, changed) {
        let timer = null;
        const later = () => {
            clearTimeout(timer);
            timer = setTimeout(() => changed(request()), PAUSE_MS);
        };
        const select = (values) =>
            F.el(
                "select",
                { on: { change: later } },
                values.map(([value, text]) => F.el("option", { value }, text)),
            );
        const strategy = select(shared.session.strategies.map((name) => [name, name]));
        const by = F.el("input", {
            placeholder: "columns to sort or cluster by",
            spellcheck: "false",
            on: { input: later },
        });
        const specs = shared.overview.specs.map((spec) => [String(spec.spec_id), `${spec.spec_id}: ${spec.spec}`]);
        const spec = select([["keep", "keep"], ["current", "current"], ...specs]);
        const where = F.el("input", {
            placeholder: "every partition",
            spellcheck: "false",
            class: "mono",
            on: { input: later },
        });
        const request = () => ({
            strategy: strategy.value,
            by: by.value.trim(),
            spec: spec.value,
            where: where.value.trim(),
        });
        const element = F.el(
            "div",
            { class: "form" },
            F.el("label", {}, "Strategy", strategy),
            F.el("label", {}, "By", by),
            F.el("label", {}, "Spec of the new files", spec),
            F.el("label", {}, "Partitions that may match", where),
        );
        return { element, request };
    }

    const gap = (...children) => F.el("div", { class: "stack" }, children);

    function drawPlan(plan) {
        const skipped = Object.entries(plan.skipped);
        if (!plan.groups_total)
            return gap(
                F.el("p", { class: "empty" }, "No file needs rewriting with these options."),
                reasons("Skipped files", skipped),
                F.command(`${plan.command} --dry-run`),
            );
        return gap(
            F.facts([
                ["files", `${F.count(plan.files)} → ${F.count(plan.expected_outputs)}`],
                ["bytes", F.bytes(plan.bytes)],
                ["groups", F.count(plan.groups_total)],
                ["delete files", F.count(plan.delete_files)],
                ["planned in", F.milliseconds(plan.planning_ms)],
            ]),
            reasons("Reasons", Object.entries(plan.reasons)),
            reasons("Skipped files", skipped),
            plan.warnings.map((warning) => F.note(warning, "warn")),
            groups(plan),
            F.command(`${plan.command} --dry-run`),
        );
    }

    /** Reasons with their counts, as bars in one scale. */
    function reasons(title, pairs) {
        if (!pairs.length) return null;
        const most = Math.max(...pairs.map(([, files]) => files));
        return F.el(
            "dl",
            { class: "bars", "aria-label": title },
            F.el("div", { class: "soft small" }, title),
            pairs.map(([reason, files]) =>
                F.el(
                    "div",
                    {},
                    F.el("dt", {}, reason.replaceAll("-", " ")),
                    F.el("dd", {}, F.count(files)),
                    F.el("div", { class: "share" }, F.el("i", { style: { width: `${(100 * files) / most}%` } })),
                ),
            ),
        );
    }

    function groups(plan) {
        const columns = [
            { name: "Group", num: true },
            { name: "Spec" },
            { name: "Partition", text: true },
            { name: "Files", num: true },
            { name: "Bytes", num: true },
            { name: "Outputs", num: true },
            { name: "Why", text: true },
        ];
        const rows = plan.groups.map((group) => [
            group.group_id,
            specsOf(group),
            F.el("code", {}, F.partition(group.partition)),
            F.count(group.files),
            F.bytes(group.bytes),
            F.count(group.expected_outputs),
            Object.entries(group.reasons)
                .map(([reason, files]) => `${reason} ${F.count(files)}`)
                .join(", "),
        ]);
        const left = plan.groups_total - plan.groups.length;
        return F.el(
            "details",
            { open: plan.groups_total <= 12 },
            F.el("summary", {}, F.counted(plan.groups_total, "group")),
            F.table("Groups of the rewrite", columns, rows),
            left > 0 ? F.el("p", { class: "faint small" }, `and ${F.count(left)} more`) : null,
        );
    }

    function specsOf(group) {
        const same = group.source_spec_ids.length === 1 && group.source_spec_ids[0] === group.output_spec_id;
        const dots = group.source_spec_ids.map((id) => F.el("span", {}, F.dot(id), id, " "));
        return same ? dots : F.el("span", {}, dots, "→ ", F.dot(group.output_spec_id), group.output_spec_id);
    }

    function drawUpgrade(plan) {
        if (!plan.files_by_metadata && !plan.files_by_rewrite && !plan.files_left)
            return gap(F.el("p", { class: "empty" }, "All files already have the current spec."));
        return gap(
            F.facts([
                ["by metadata alone", F.count(plan.files_by_metadata), `of ${F.count(plan.files_total)}`],
                ["by rewriting", F.count(plan.files_by_rewrite)],
                ["left", F.count(plan.files_left)],
                ["delete files moved", F.count(plan.deletes_carried)],
            ]),
            reasons("Why files cannot be moved by metadata", Object.entries(plan.reasons)),
            plan.notes.map((note) => F.note(note, "warn")),
            F.command(`${plan.command} --dry-run`),
        );
    }

    function writeButton(shared, action, text, worth, body, what) {
        if (!shared.session.allow_writes || shared.overview.read_only || !worth) return null;
        return F.el(
            "p",
            { class: "act" },
            F.el(
                "button",
                { type: "button", class: "main", on: { click: () => confirmed(shared, action, body, what) } },
                text,
            ),
        );
    }

    /** Request the table's name before anything is written. */
    function confirmed(shared, action, body, what) {
        const dialog = document.getElementById("confirm-dialog");
        const name = F.el("input", {
            autocomplete: "off",
            spellcheck: "false",
            class: "mono",
            on: {
                input: () => {
                    go.disabled = name.value !== shared.overview.table;
                },
            },
        });
        const outcome = F.el("div", { role: "status" });
        const go = F.el(
            "button",
            { type: "button", class: "main", disabled: true, on: { click: run } },
            "Change the table",
        );
        const cancel = F.el("button", { type: "button", on: { click: () => dialog.close() } }, "Cancel");
        F.fill(
            dialog,
            F.el(
                "div",
                { class: "inside" },
                F.el("h2", { id: "confirm-title" }, action === "rewrite" ? "Rewrite files?" : "Upgrade the spec?"),
                F.el("p", {}, what),
                F.el("label", {}, `Type ${shared.overview.table} to confirm`, name),
                outcome,
                F.el("p", { class: "chips" }, go, cancel),
            ),
        );
        dialog.showModal();

        async function run() {
            go.disabled = true;
            F.fill(outcome, F.el("p", { class: "soft" }, "Running… keep this page open to see the result."));
            try {
                const result = await F.source.write(action, { ...body, confirm: name.value });
                F.fill(outcome, F.note(`Done: ${F.counted(result.snapshot_ids.length, "snapshot")} committed.`));
                cancel.textContent = "Close";
                dialog.addEventListener("close", () => shared.reload(), { once: true });
            } catch (failure) {
                F.fill(outcome, F.note(failure.message, "bad"));
            }
        }
    }
})((window.Floeplan = window.Floeplan || {}));
