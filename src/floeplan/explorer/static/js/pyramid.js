/* The pruning pyramid, what each condition pruned, and what each spec kept. */
(function (F) {
    "use strict";

    /** Levels from the manifests down to the bytes; the share that is read is drawn in the middle of each. */
    F.pyramid = function (plan) {
        const summary = plan.summary;
        const pages = plan.passes.find((step) => step.unit === "pages");
        const levels = [
            ["manifests", summary.manifests_kept, summary.manifests_total, F.count],
            ["files", summary.files_kept, summary.files_total, F.count],
            ["row groups", summary.row_groups_kept, summary.row_groups_total, F.count],
            ["pages", pages ? pages.kept : null, pages ? pages.total : null, F.count],
            ["rows", summary.rows_kept, summary.rows_total, F.about],
            ["bytes", summary.bytes_kept, summary.bytes_total, F.bytes],
        ];
        return F.el(
            "div",
            { class: "pyramid", role: "list", "aria-label": "What is read at each level" },
            levels.map((level) => drawLevel(plan, ...level)),
        );
    };

    function drawLevel(plan, name, kept, total, show) {
        if (kept === null || kept === undefined) return unknownLevel(plan, name);
        const share = total ? kept / total : 0;
        const side = `${(100 * (1 - Math.min(1, share))) / 2}%`;
        const fill = kept ? F.el("span", { class: "fill", style: { left: side, right: side } }) : null;
        const label = `${name}: ${show(kept)} of ${total === null ? "unknown" : show(total)} read`;
        return F.el(
            "div",
            { class: "level", role: "listitem", "aria-label": label },
            F.el("span", { class: "what" }, name),
            F.el("span", { class: "track" }, fill),
            F.el(
                "span",
                { class: "much" },
                F.el("b", {}, show(kept)),
                F.el("span", { class: "of soft" }, total === null ? "" : ` of ${show(total)}`),
                F.el("span", { class: "soft" }, kept === total ? " · all" : total ? ` · ${F.percent(kept, total)}` : ""),
            ),
        );
    }

    /** Footers are read for files that metadata cannot decide, and page indexes for row groups that footers cannot. */
    function unknownLevel(plan, name) {
        const label = !plan.where ? "all" : plan.footers ? "not needed" : "not opened";
        return F.el(
            "div",
            { class: "level unknown", role: "listitem", "aria-label": `${name}: ${label}` },
            F.el("span", { class: "what" }, name),
            F.el("span", { class: "track" }),
            F.el("span", { class: "much faint" }, label),
        );
    }

    /** How many manifests and files each operand of the AND would drop alone. */
    F.effects = function (plan) {
        const evaluated = plan.passes.filter((step) => step.effects.length);
        if (!evaluated.length) return null;
        const columns = [
            { name: "Condition", text: true },
            ...evaluated.map((step) => ({ name: `${step.unit} of ${F.count(step.total)}`, num: true })),
            { name: "Limits", text: true },
        ];
        const rows = evaluated[0].effects.map((effect, at) => {
            return [
                F.el("code", {}, effect.predicate),
                ...evaluated.map((step) => dropped(step, at)),
                F.el("span", { class: "soft" }, plan.reasons[at]),
            ];
        });
        return F.table("What each condition drops", columns, rows);
    };

    function dropped(step, at) {
        const number = step.effects[at].dropped;
        return number ? `${F.count(number)} · ${F.percent(number, step.total)}` : "–";
    }

    /** One row per spec: what it kept, and what decides each condition on its files. */
    F.bySpec = function (plan) {
        const columns = [
            { name: "Spec" },
            { name: "Manifests", num: true },
            { name: "Files", num: true },
            { name: "Bytes", num: true },
            { name: "What decides each condition", text: true },
        ];
        const row = (spec) => [
            F.el("span", {}, F.dot(spec.spec_id), `${spec.spec_id} `, F.el("code", { class: "soft" }, spec.spec)),
            `${F.count(spec.manifests_kept)} of ${F.count(spec.manifests_total)}`,
            `${F.count(spec.files_kept)} of ${spec.files_total === null ? "?" : F.count(spec.files_total)}`,
            F.bytes(spec.bytes_kept),
            spec.reasons.map((reason) => F.el("div", {}, reason)),
        ];
        const drawn = (specs) => F.table("What each spec keeps", columns, specs.map(row));
        // Manifests of a spec may be left whose files were all removed.
        const empty = plan.specs.filter((spec) => spec.files_total === 0);
        if (!empty.length) return drawn(plan.specs);
        const used = plan.specs.filter((spec) => spec.files_total !== 0);
        return F.el("div", {}, used.length ? drawn(used) : null, F.folded(empty.length, drawn(empty)));
    };
})((window.Floeplan = window.Floeplan || {}));
