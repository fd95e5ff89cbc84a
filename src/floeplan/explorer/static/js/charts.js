/* Charts: ECharts in the colours of the page, each with a name for screen readers and an equivalent table. */
(function (F) {
    "use strict";

    const drawn = new Set();

    F.colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
    F.specColour = (specId) => F.colour(F.specClass(specId));

    /** A colour between two of the page's, `share` of the way. */
    F.between = function (low, high, share) {
        const part = (colour, at) => parseInt(colour.slice(1 + 2 * at, 3 + 2 * at), 16);
        const [from, to] = [F.colour(low), F.colour(high)];
        const mixed = [0, 1, 2].map((at) => Math.round(part(from, at) + (part(to, at) - part(from, at)) * share));
        return `rgb(${mixed.join(",")})`;
    };

    /** What all charts have in common. */
    F.base = function () {
        return {
            textStyle: { fontFamily: getComputedStyle(document.body).fontFamily, color: F.colour("ink") },
            animation: !window.matchMedia("(prefers-reduced-motion: reduce)").matches,
            animationDuration: 250,
            tooltip: {
                backgroundColor: F.colour("paper"),
                borderColor: F.colour("line"),
                textStyle: { color: F.colour("ink") },
                confine: true,
                transitionDuration: 0,
                padding: [8, 12],
            },
        };
    };

    F.axis = function (more) {
        const line = { lineStyle: { color: F.colour("line") } };
        return {
            axisLine: line,
            axisTick: { show: false },
            splitLine: { show: false, ...line },
            axisLabel: { color: F.colour("soft"), fontSize: 12, hideOverlap: true },
            ...more,
        };
    };

    F.values = (more) =>
        F.axis({
            type: "value",
            axisLine: { show: false },
            splitLine: { show: true, lineStyle: { color: F.colour("line") } },
            ...more,
        });

    /** An axis of bytes whose steps are round in KiB, MiB and so on. */
    F.byteAxis = function (most) {
        const unit = 1024 ** Math.max(0, Math.floor(Math.log(Math.max(1, most / 4)) / Math.log(1024)));
        const rough = most / 4 / unit;
        const step = ([1, 2, 5, 10, 20, 50, 100, 200, 500].find((one) => one >= rough) || 1024) * unit;
        return F.values({
            interval: step,
            max: Math.max(step, Math.ceil(most / step) * step),
            axisLabel: { color: F.colour("soft"), formatter: F.bytes, hideOverlap: true },
        });
    };

    /** A tooltip as an element, so that no text of the table is ever read as HTML. */
    F.tip = (title, lines) =>
        F.el(
            "div",
            { class: "tip" },
            F.el("b", {}, title),
            lines.map((line) => F.el("span", {}, line)),
        );

    /**
     * A figure with a chart. `option` is a function, called again when colours change; `table` gives the same as rows.
     */
    F.chart = function ({ label, height, option, table, click }) {
        const place = F.el("div", {
            class: "chart",
            role: "img",
            "aria-label": label,
            style: { height: `${height}px` },
        });
        const rows = F.el(
            "details",
            {
                on: {
                    toggle: () => {
                        if (rows.open && rows.children.length === 1) F.add(rows, table());
                    },
                },
            },
            F.el("summary", {}, "Show as a table"),
        );
        const figure = F.el("figure", {}, place, rows);
        const one = {
            place,
            chart: null,
            redraw() {
                if (one.chart) one.chart.setOption(option(), true);
            },
        };
        const watcher = new ResizeObserver(() => {
            if (!place.isConnected || !place.clientWidth) return;
            if (one.chart) {
                one.chart.resize();
                return;
            }
            one.chart = echarts.init(place, null, { renderer: "canvas" });
            one.redraw();
            if (click) one.chart.on("click", click);
        });
        watcher.observe(place);
        drawn.add(one);
        figure.redraw = one.redraw;
        return figure;
    };

    /** Redraw all charts and dispose of those that are no longer on the page. */
    F.redrawAll = function () {
        for (const one of drawn) {
            if (one.place.isConnected) one.redraw();
            else {
                if (one.chart) one.chart.dispose();
                drawn.delete(one);
            }
        }
    };
})((window.Floeplan = window.Floeplan || {}));
