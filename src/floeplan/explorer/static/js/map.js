/* The table as a map: lanes of partitions over time, one rectangle for all files of a cell, drawn on a canvas. */
(function (F) {
    "use strict";

    const LANE_HEIGHT = 20;
    const MOST_ROWS = 400;
    const MODES = {
        spec: { text: "Spec", of: () => 1, show: () => "" },
        bytes: { text: "Bytes", of: (cells, at) => cells.bytes[at], show: F.bytes },
        size: { text: "File size", of: (cells, at) => cells.bytes[at] / cells.files[at], show: F.bytes },
        deletes: { text: "Deletes", of: (cells, at) => cells.deletes[at], show: F.count },
    };

    /** The card with the map; `show(plan)` dims what the plan drops, `open(cell)` is called for a chosen cell. */
    F.mapCard = function (map, specs, open) {
        const state = { mode: "spec", kept: null };
        if (!map.cells.lane.length) {
            return {
                card: F.card("Map", {}, F.el("p", { class: "empty" }, "The table has no files yet: nothing to draw.")),
                show() {},
            };
        }
        const legend = F.el("ul", { class: "legend" });
        const figure = F.chart({
            label: `Map of the table: ${F.counted(map.lanes.length, "lane")} of partitions over ${map.axis.title}`,
            height: Math.min(960, map.lanes.length * LANE_HEIGHT + 64),
            option: () => option(map, state),
            table: () => asTable(map, state, open),
            click: (event) => open(cellAt(map, state, event.dataIndex)),
        });
        const noDeletes = !map.cells.deletes.some(Boolean);
        const modes = F.modes(
            "Colour by",
            "map-mode",
            Object.entries(MODES).map(([value, mode]) => [value, mode.text, value === "deletes" && noDeletes]),
            "spec",
            (mode) => {
                state.mode = mode;
                draw();
            },
        );
        function draw() {
            F.fill(legend, legendOf(map, specs, state));
            figure.redraw();
        }
        F.fill(legend, legendOf(map, specs, state));
        const untimed = map.untimed
            ? F.el(
                  "p",
                  { class: "faint small" },
                  `${F.counted(map.untimed, "file")} without a known time are drawn at the left edge.`,
              )
            : null;
        const what =
            map.axis.kind === "time"
                ? `partitions over ${map.axis.title}, one column per ${map.axis.unit}`
                : `partitions over commits, one column per ${map.axis.unit}`;
        const card = F.card("Map", { subtitle: what, aside: modes }, legend, figure, untimed);
        return {
            card,
            show(plan) {
                state.kept = plan && plan.where ? plan.kept_by_cell : null;
                draw();
            },
        };
    };

    function legendOf(map, specs, state) {
        const items =
            state.mode === "spec"
                ? specs
                      .filter((spec) => spec.files)
                      .map((spec) => F.el("li", {}, F.dot(spec.spec_id), `${spec.spec_id}: ${spec.spec}`))
                : [F.el("li", {}, "0", F.el("span", { class: "ramp" }), MODES[state.mode].show(most(map, state.mode)))];
        if (state.kept)
            items.push(
                F.el(
                    "li",
                    {},
                    F.el("span", { class: "dot", style: { background: "var(--dead)" } }),
                    "pruned by the predicate",
                ),
            );
        return items;
    }

    function most(map, mode) {
        let highest = 0;
        for (let at = 0; at < map.cells.lane.length; at += 1)
            highest = Math.max(highest, MODES[mode].of(map.cells, at));
        return highest;
    }

    function option(map, state) {
        const { cells } = map;
        const mode = MODES[state.mode];
        const highest = most(map, state.mode) || 1;
        const colours = cells.lane.map((lane, at) => colourOf(map, state, mode, highest, lane, at));
        const labels = map.untimed ? ["?", ...map.axis.labels] : map.axis.labels;
        const shift = map.untimed ? 1 : 0;
        const narrow = window.innerWidth < 560;
        return {
            ...F.base(),
            animation: false,
            grid: { left: 8, right: 36, top: 8, bottom: 8, containLabel: true },
            tooltip: { ...F.base().tooltip, trigger: "item", formatter: (event) => tip(map, state, event.dataIndex) },
            xAxis: F.axis({ type: "category", data: labels }),
            yAxis: F.axis({
                type: "category",
                inverse: true,
                data: map.lanes.map((lane) => lane.label),
                axisLabel: {
                    color: F.colour("soft"),
                    fontSize: 12,
                    width: narrow ? 84 : 190,
                    overflow: "truncate",
                    formatter: narrow ? valuesOnly : null,
                    interval: 0,
                },
            }),
            series: [
                {
                    type: "custom",
                    data: cells.lane.map((lane, at) => [cells.bin[at] + shift, lane]),
                    encode: { x: 0, y: 1 },
                    cursor: "pointer",
                    renderItem: (which, api) => {
                        const [x, y] = api.coord([api.value(0), api.value(1)]);
                        const [width, height] = api.size([1, 1]);
                        const gap = width > 4 ? 1 : 0;
                        const shape = {
                            x: x - width / 2,
                            y: y - height / 2 + 1,
                            width: Math.max(1, width - gap),
                            height: height - 2,
                            r: width > 8 ? 2 : 0,
                        };
                        return {
                            type: "rect",
                            shape,
                            style: { fill: colours[which.dataIndex] },
                            emphasis: { style: { stroke: F.colour("ink"), lineWidth: 1.5 } },
                        };
                    },
                },
            ],
        };
    }

    /** A lane without the names of its fields, which would leave no room for their values; the tooltip has both. */
    function valuesOnly(label) {
        return label.replace(/(^|, | … )[^=,…]+=/g, "$1");
    }

    function colourOf(map, state, mode, highest, lane, at) {
        const survive = state.kept ? state.kept[at] / map.cells.files[at] : 1;
        if (!survive) return F.colour("dead");
        if (state.mode === "spec") {
            return F.between("dead", F.specClass(map.lanes[lane].spec_id), 0.3 + 0.7 * Math.sqrt(survive));
        }
        return F.between("heat-0", "heat-1", Math.sqrt(mode.of(map.cells, at) / highest));
    }

    function cellAt(map, state, at) {
        const lane = map.cells.lane[at],
            bin = map.cells.bin[at];
        const cell = {
            at,
            lane,
            bin,
            where: `${map.lanes[lane].label}, ${bin < 0 ? "time unknown" : map.axis.labels[bin]}`,
            spec_id: map.lanes[lane].spec_id,
        };
        for (const name of ["files", "bytes", "rows", "deletes"]) cell[name] = map.cells[name][at];
        if (state.kept) cell.kept = state.kept[at];
        return cell;
    }

    function tip(map, state, at) {
        const cell = cellAt(map, state, at);
        const lines = [
            `spec ${cell.spec_id}, ${F.counted(cell.files, "file")}, ${F.bytes(cell.bytes)}`,
            `${F.counted(cell.rows, "row")}, ${F.counted(cell.deletes, "delete file")}`,
        ];
        if (cell.kept !== undefined) lines.push(`${F.count(cell.kept)} of ${F.count(cell.files)} files kept`);
        return F.tip(cell.where, lines);
    }

    /** The map as rows, whose cells can be opened with the keyboard. */
    function asTable(map, state, open) {
        const columns = [
            { name: "Cell", text: true },
            { name: "Spec", num: true },
            { name: "Files", num: true },
            { name: "Bytes", num: true },
            { name: "Deletes", num: true },
        ];
        const order = map.cells.lane
            .map((_, at) => at)
            .sort((left, right) => map.cells.bytes[right] - map.cells.bytes[left])
            .slice(0, MOST_ROWS);
        const rows = order.map((at) => {
            const cell = cellAt(map, state, at);
            const button = F.el(
                "button",
                { type: "button", class: "link", on: { click: () => open(cellAt(map, state, at)) } },
                cell.where,
            );
            return [button, cell.spec_id, F.count(cell.files), F.bytes(cell.bytes), F.count(cell.deletes)];
        });
        return F.table("Cells of the map, largest first", columns, rows);
    }
})((window.Floeplan = window.Floeplan || {}));
