/* The history of the table: partition specs and snapshots. */
(function (F) {
    "use strict";

    const MOST_ROWS = 200;

    F.views = F.views || {};
    F.views.history = async function (main, shared) {
        const map = await shared.map();
        F.fill(main, specs(shared.overview, map), snapshots(shared.overview));
    };

    function specs(overview, map) {
        const subtitle = F.counted(overview.specs.length, "partition spec");
        const whole = overview.specs.reduce((sum, spec) => sum + spec.bytes, 0);
        const line = (chosen) =>
            F.el(
                "ol",
                { class: "line" },
                chosen.map((spec) =>
                    F.el(
                        "li",
                        {},
                        F.el("span", { class: `dot ${F.specClass(spec.spec_id)}`, "aria-hidden": "true" }),
                        oneSpec(spec, whole, overview.files),
                    ),
                ),
            );
        const shown = overview.specs.filter((spec) => spec.files || spec.default);
        const empty = overview.specs.filter((spec) => !spec.files && !spec.default);
        return F.card(
            "Partitioning over time",
            { subtitle },
            line(shown),
            empty.length ? F.folded(empty.length, line(empty)) : null,
            map.cells.lane.length ? overTime(overview, map) : null,
        );
    }

    function oneSpec(spec, whole, files) {
        const when = spec.first_ms
            ? `live files committed ${F.time(spec.first_ms)} – ${F.time(spec.last_ms)}`
            : spec.files
              ? "its snapshots have expired"
              : "no live files";
        const share = F.el(
            "div",
            { class: "share", role: "img", "aria-label": `${F.percent(spec.bytes, whole) || "none"} of the bytes` },
            spec.bytes
                ? F.el("i", { class: F.specClass(spec.spec_id), style: { width: `${(100 * spec.bytes) / whole}%` } })
                : null,
        );
        return F.el(
            "div",
            {},
            F.el(
                "p",
                {},
                F.el("span", { class: "faint" }, `${spec.spec_id} `),
                F.el("span", { class: "spec" }, spec.spec),
                spec.default ? F.tag("accent", "current") : null,
            ),
            F.el(
                "p",
                { class: "soft small" },
                `${F.count(spec.files)} of ${F.counted(files, "file")} in ${F.counted(spec.partitions, "partition")}, ${F.bytes(spec.bytes)}${whole ? ` (${F.percent(spec.bytes, whole)})` : ""} · ${when}`,
            ),
            share,
        );
    }

    /** Bytes per bin of the map, stacked by spec. */
    function overTime(overview, map) {
        const used = overview.specs.filter((spec) => spec.files);
        const sums = new Map(used.map((spec) => [spec.spec_id, new Array(map.axis.labels.length).fill(0)]));
        map.cells.lane.forEach((lane, at) => {
            const bin = map.cells.bin[at];
            if (bin >= 0) sums.get(map.lanes[lane].spec_id)[bin] += map.cells.bytes[at];
        });
        const option = () => ({
            ...F.base(),
            grid: { left: 8, right: 36, top: 14, bottom: 8, containLabel: true },
            tooltip: {
                ...F.base().tooltip,
                trigger: "axis",
                axisPointer: { type: "shadow", shadowStyle: { opacity: 0.15 } },
                formatter: (found) =>
                    F.tip(
                        found[0].name,
                        found.filter((one) => one.value).map((one) => `${one.seriesName}: ${F.bytes(one.value)}`),
                    ),
            },
            xAxis: F.axis({ type: "category", data: map.axis.labels }),
            yAxis: F.byteAxis(
                Math.max(
                    ...map.axis.labels.map((_, bin) =>
                        used.reduce((sum, spec) => sum + sums.get(spec.spec_id)[bin], 0),
                    ),
                ),
            ),
            series: used.map((spec) => ({
                name: `spec ${spec.spec_id}`,
                type: "bar",
                stack: "bytes",
                barCategoryGap: "12%",
                data: sums.get(spec.spec_id),
                itemStyle: { color: F.specColour(spec.spec_id) },
            })),
        });
        const table = () =>
            F.table(
                "Bytes by time and spec",
                [{ name: map.axis.unit }, ...used.map((spec) => ({ name: `Spec ${spec.spec_id}`, num: true }))],
                map.axis.labels.map((label, bin) => [
                    label,
                    ...used.map((spec) => F.bytes(sums.get(spec.spec_id)[bin])),
                ]),
            );
        const title = F.el(
            "p",
            { class: "soft small" },
            map.axis.kind === "time"
                ? `Bytes by ${map.axis.title}, one bar per ${map.axis.unit}, coloured by partition spec`
                : `Bytes by commit, one bar per ${map.axis.unit}`,
        );
        return F.el(
            "div",
            {},
            title,
            F.chart({ label: "Bytes over time by partition spec", height: 240, option, table }),
        );
    }

    function snapshots(overview) {
        if (!overview.snapshots.length)
            return F.card("Snapshots", {}, F.el("p", { class: "empty" }, "Nothing was committed yet."));
        const shown = overview.snapshots.slice(0, MOST_ROWS);
        const names = new Map(Object.entries(overview.refs).map(([name, ref]) => [ref.snapshot_id, name]));
        const columns = [
            { name: "Committed (UTC)" },
            { name: "Operation" },
            { name: "Files", num: true },
            { name: "Deletes", num: true },
            { name: "Rows", num: true },
            { name: "Snapshot" },
        ];
        const rows = shown.map((one) => [
            F.time(one.timestamp_ms),
            F.tag(
                one.operation === "append"
                    ? "good"
                    : one.operation === "replace"
                      ? "accent"
                      : one.operation
                        ? "warn"
                        : "",
                one.operation || "–",
            ),
            change(one.summary, "added-data-files", "deleted-data-files"),
            change(one.summary, "added-delete-files", "removed-delete-files"),
            change(one.summary, "added-records", "deleted-records"),
            F.el(
                "span",
                {},
                F.el("code", {}, one.snapshot_id),
                " ",
                names.has(one.snapshot_id) ? F.tag("accent", names.get(one.snapshot_id)) : null,
            ),
        ]);
        const left = overview.snapshots_total - shown.length;
        return F.card(
            "Snapshots",
            { subtitle: `${F.counted(overview.snapshots_total, "snapshot")}, newest first` },
            overview.snapshots.length > 1 ? growth(overview) : null,
            F.table("Snapshots", columns, rows),
            left > 0 ? F.el("p", { class: "faint small" }, `and ${F.counted(left, "older snapshot")}`) : null,
        );
    }

    function change(summary, more, less) {
        const parts = [];
        if (summary[more]) parts.push(`+${F.about(summary[more])}`);
        if (summary[less]) parts.push(`−${F.about(summary[less])}`);
        return parts.join(" ") || F.el("span", { class: "faint" }, "–");
    }

    /** Files and delete files after each snapshot. */
    function growth(overview) {
        const oldest = [...overview.snapshots].reverse().filter((one) => "total-data-files" in one.summary);
        if (oldest.length < 2) return null;
        const series = [
            ["data files", "total-data-files", "accent"],
            ["delete files", "total-delete-files", "bad"],
        ];
        const option = () => ({
            ...F.base(),
            grid: { left: 24, right: 36, top: 30, bottom: 8, containLabel: true },
            legend: { right: 8, top: 0, textStyle: { color: F.colour("soft") }, icon: "roundRect", itemHeight: 8 },
            tooltip: {
                ...F.base().tooltip,
                trigger: "axis",
                formatter: (found) => {
                    const one = oldest[found[0].dataIndex];
                    return F.tip(F.time(one.timestamp_ms), [
                        one.operation || "",
                        ...found.map((line) => `${line.seriesName}: ${F.count(line.value)}`),
                    ]);
                },
            },
            xAxis: F.axis({ type: "category", data: oldest.map((one) => F.time(one.timestamp_ms)) }),
            yAxis: F.values({ minInterval: 1, axisLabel: { color: F.colour("soft"), formatter: F.about } }),
            series: series.map(([name, key, colour]) => ({
                name,
                type: "line",
                step: "end",
                showSymbol: oldest.length < 60,
                symbolSize: 5,
                data: oldest.map((one) => one.summary[key] || 0),
                lineStyle: { color: F.colour(colour), width: 2 },
                itemStyle: { color: F.colour(colour) },
                areaStyle: { color: F.colour(colour), opacity: 0.08 },
            })),
        });
        const table = () =>
            F.table(
                "Files after each snapshot",
                [{ name: "Time" }, { name: "Data files", num: true }, { name: "Delete files", num: true }],
                oldest.map((one) => [
                    F.time(one.timestamp_ms),
                    F.count(one.summary["total-data-files"]),
                    F.count(one.summary["total-delete-files"]),
                ]),
            );
        return F.chart({ label: "Data and delete files after each snapshot", height: 200, option, table });
    }
})((window.Floeplan = window.Floeplan || {}));
