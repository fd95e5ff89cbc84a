/* Problems of the table (doctor), and queries that read too much (audit). */
(function (F) {
    "use strict";

    const MOST_LINES = 6;
    const LEVELS = ["manifests", "files", "row_groups", "rows", "bytes"];

    F.views = F.views || {};
    F.views.health = async function (main, shared) {
        F.fill(main, F.el("p", { class: "wait" }, "Checking the table…"));
        const found = await shared.doctor();
        F.fill(main, F.healthCard(found), F.card("Data file sizes", {}, sizes(shared.overview.sizes)));
    };

    /** What the doctor found. */
    F.healthCard = function (found) {
        const subtitle = found.findings.length ? F.counted(found.findings.length, "finding") : "";
        const nothing = F.el("p", { class: "empty" }, "No problems found in the metadata.");
        return F.card("Health", { subtitle }, found.findings.length ? kinds(found.findings).map(finding) : nothing);
    };

    /** Findings of one kind: one line per spec, and the command that fixes them. */
    function kinds(findings) {
        const found = new Map();
        for (const one of findings) found.set(one.kind, [...(found.get(one.kind) || []), one]);
        return [...found.values()];
    }

    function finding(same) {
        const [first] = same;
        const lines = same.map((one) =>
            F.el(
                "p",
                {},
                one.spec_id === null || one.spec_id === undefined
                    ? null
                    : F.el("span", { class: "soft" }, F.dot(one.spec_id), `spec ${one.spec_id}: `),
                one.message,
            ),
        );
        const paths = same.flatMap((one) => one.examples || []);
        const examples = paths.length
            ? F.el(
                  "details",
                  {},
                  F.el("summary", {}, "Examples"),
                  paths.map((path) => F.el("p", { class: "mono faint small" }, path)),
              )
            : null;
        return F.el(
            "div",
            { class: "finding" },
            F.el("p", { class: "title" }, F.tag(first.severity, first.severity), first.kind.replaceAll("-", " ")),
            lines,
            first.fix ? F.command(first.fix) : null,
            examples,
        );
    }

    function sizes(found) {
        if (!found.histogram.length) return F.el("p", { class: "empty" }, "There are no data files.");
        const names = found.histogram.map((one) => `≤ ${F.bytes(one.up_to_bytes)}`);
        const option = () => ({
            ...F.base(),
            grid: { left: 8, right: 12, top: 10, bottom: 8, containLabel: true },
            tooltip: {
                ...F.base().tooltip,
                trigger: "axis",
                axisPointer: { type: "shadow", shadowStyle: { opacity: 0.15 } },
                formatter: (items) => F.tip(items[0].name, [F.counted(items[0].value, "file")]),
            },
            xAxis: F.axis({ type: "category", data: names }),
            yAxis: F.values({ minInterval: 1, axisLabel: { color: F.colour("soft"), formatter: F.about } }),
            series: [
                {
                    type: "bar",
                    barMaxWidth: 56,
                    data: found.histogram.map((one) => one.files),
                    itemStyle: { color: F.colour("accent"), borderRadius: [3, 3, 0, 0] },
                },
            ],
        });
        const table = () =>
            F.table(
                "Files by size",
                [{ name: "Size" }, { name: "Files", num: true }],
                found.histogram.map((one, at) => [names[at], F.count(one.files)]),
            );
        return F.chart({ label: "Number of data files by size", height: 180, option, table });
    }

    F.views.audit = async function (main, shared) {
        if (!shared.session.audit) {
            F.fill(
                main,
                F.card(
                    "Audit",
                    {},
                    F.el(
                        "p",
                        { class: "empty" },
                        "No scan reports were given. Planning writes scan reports; pass them to the explorer to find queries that read too much.",
                    ),
                    F.command(
                        `floeplan ${F.source.live ? "serve" : "report"} ${shared.overview.table} ${F.source.live ? "" : "-o site "}--reports DIR`,
                    ),
                ),
            );
            return;
        }
        F.fill(main, F.el("p", { class: "wait" }, "Auditing the scan reports on Spark…"));
        const found = await shared.audit();
        F.fill(
            main,
            F.card(
                "Audit",
                { subtitle: `queries of ${shared.overview.table}, grouped without their literals` },
                F.facts([
                    ["queries", F.count(found.queries)],
                    ["runs", F.count(found.runs)],
                    ["read", F.bytes(found.bytes_kept)],
                    ["flagged", F.count(found.flagged_total)],
                ]),
            ),
            found.flagged.length
                ? [byEngine(found), trends(found), F.card("Flagged", {}, found.flagged.map(flagged))]
                : F.card("Flagged", {}, F.el("p", { class: "empty" }, "No query reads much more than it needs.")),
        );
    };

    /** The flagged queries of each engine and version, those with most runs first. */
    function byEngine(found) {
        const engines = new Map();
        for (const one of found.flagged) {
            for (const [engine, runs] of Object.entries(one.engines ?? {})) {
                const known = engines.get(engine) ?? { runs: 0, bytes: 0, filters: [] };
                known.runs += runs;
                known.bytes += runs * one.bytes_per_run;
                known.filters.push(one.filter);
                engines.set(engine, known);
            }
        }
        if (!engines.size) return null;
        const rows = [...engines].sort(([, a], [, b]) => b.bytes - a.bytes);
        return F.card(
            "Engines",
            { subtitle: "flagged queries by the engine that ran them" },
            F.table(
                "Flagged queries by engine",
                [
                    { name: "Engine" },
                    { name: "Queries", num: true },
                    { name: "Runs", num: true },
                    { name: "Read", num: true },
                    { name: "Filters" },
                ],
                rows.map(([engine, { runs, bytes, filters }]) => [
                    engine,
                    F.count(filters.length),
                    F.count(runs),
                    F.bytes(Math.round(bytes)),
                    F.el("code", {}, filters.slice(0, MOST_LINES).join(" · ")),
                ]),
            ),
        );
    }

    /** Bytes per run of the queries that read most, day by day. */
    function trends(found) {
        const shown = found.flagged.filter((one) => one.days.length > 1).slice(0, MOST_LINES);
        if (!shown.length) return null;
        const days = [...new Set(shown.flatMap((one) => one.days.map((day) => day.day)))].sort();
        const perRun = (one) => {
            const known = new Map(one.days.map((day) => [day.day, day.bytes_kept / day.runs]));
            return days.map((day) => known.get(day) ?? null);
        };
        const option = () => ({
            ...F.base(),
            grid: { left: 8, right: 16, top: 34, bottom: 8, containLabel: true },
            legend: {
                type: "scroll",
                left: 0,
                top: 0,
                textStyle: { color: F.colour("soft"), fontFamily: F.colour("mono") },
                icon: "roundRect",
                itemHeight: 8,
            },
            tooltip: {
                ...F.base().tooltip,
                trigger: "axis",
                formatter: (lines) =>
                    F.tip(
                        lines[0].name,
                        lines
                            .filter((line) => line.value !== null && line.value !== undefined)
                            .map((line) => `${line.seriesName}: ${F.bytes(Math.round(line.value))} per run`),
                    ),
            },
            xAxis: F.axis({ type: "category", data: days, boundaryGap: false }),
            yAxis: F.byteAxis(Math.max(...shown.flatMap(perRun))),
            series: shown.map((one, at) => ({
                name: one.fingerprint,
                type: "line",
                connectNulls: true,
                showSymbol: days.length < 40,
                symbolSize: 5,
                data: perRun(one),
                lineStyle: { color: F.specColour(at), width: 2 },
                itemStyle: { color: F.specColour(at) },
            })),
        });
        const table = () =>
            F.table(
                "Bytes per run by day",
                [{ name: "Day" }, ...shown.map((one) => ({ name: one.fingerprint, num: true }))],
                days.map((day, at) => [day, ...shown.map((one) => F.bytes(Math.round(perRun(one)[at])))]),
            );
        return F.card(
            "Trends",
            { subtitle: "bytes per run and day" },
            F.chart({ label: "Bytes per run of flagged queries by day", height: 220, option, table }),
        );
    }

    function trend(ratio) {
        if (ratio === null || ratio === undefined) return null;
        if (ratio >= 0.9 && ratio <= 1.1) return F.tag("", "steady");
        return ratio > 1
            ? F.tag("bad", `growing ${ratio.toFixed(1)}×`)
            : F.tag("good", `shrinking to ${ratio.toFixed(1)}×`);
    }

    /** The engines of a query: " by Iceberg Java 1.12.0 (3), floeplan 0.1.0 (1)". */
    function ranBy(one) {
        const engines = Object.entries(one.engines ?? {});
        if (!engines.length) return "";
        return ` by ${engines.map(([engine, runs]) => (engines.length > 1 ? `${engine} (${F.count(runs)})` : engine)).join(", ")}`;
    }

    function flagged(one) {
        const levels = LEVELS.filter((level) => one.ratios[level] !== null && one.ratios[level] !== undefined);
        return F.el(
            "div",
            { class: "finding" },
            F.el("p", { class: "title" }, F.el("code", {}, one.filter), F.tag("warn", one.reason), trend(one.trend)),
            F.el(
                "p",
                { class: "soft small" },
                `${one.table} · ${one.fingerprint} · ${F.counted(one.runs, "run")}${ranBy(one)}, ${F.bytes(one.bytes_per_run)} each${one.selectivity === null ? "" : `, about ${F.percent(one.selectivity, 1)} of the rows wanted`}`,
            ),
            F.el(
                "div",
                { class: "ratios" },
                levels.map((level) =>
                    F.el(
                        "div",
                        {},
                        `${level.replace("_", " ")} ${F.percent(one.ratios[level], 1)}`,
                        F.el("div", { class: "share" }, F.el("i", { style: { width: `${100 * one.ratios[level]}%` } })),
                    ),
                ),
            ),
            F.note(one.advice),
        );
    }
})((window.Floeplan = window.Floeplan || {}));
