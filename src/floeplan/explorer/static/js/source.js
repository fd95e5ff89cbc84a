/* Loads documents: from the server of this page, or from the report that contains it. */
(function (F) {
    "use strict";

    const report = window.FLOEPLAN_REPORT || null;

    F.Failure = class extends Error {
        constructor(kind, message) {
            super(message);
            this.kind = kind;
        }
    };

    const TOKEN = "floeplan-token";

    /** The session token that `floeplan serve` prints in its URL: taken out of the address bar, kept for this tab. */
    function takeToken(address) {
        const given = address.get("token");
        try {
            if (given) sessionStorage.setItem(TOKEN, given);
        } catch {
            /* without storage the token is lost when the page is reloaded */
        }
        if (given) {
            address.delete("token");
            history.replaceState(null, "", `?${address}${location.hash}`);
        }
        try {
            return given || sessionStorage.getItem(TOKEN) || "";
        } catch {
            return given || "";
        }
    }

    function server() {
        const address = new URLSearchParams(location.search);
        const token = takeToken(address);
        let table = address.get("table");

        async function answer(response) {
            const document = await response.json();
            if (document.error) throw new F.Failure(document.error.kind, document.error.message);
            return document;
        }

        async function get(name, parameters, signal) {
            const query = new URLSearchParams();
            for (const [key, value] of Object.entries({ table, ...parameters }))
                if (value !== null && value !== undefined && value !== "") query.set(key, value);
            const headers = token ? { "X-Floeplan-Token": token } : {};
            return answer(await fetch(`/api/${name}?${query}`, { signal, headers }));
        }

        return {
            live: true,
            table: () => table,
            choose(name) {
                table = name;
                history.replaceState(null, "", `?table=${encodeURIComponent(name)}${location.hash}`);
            },
            session: () => get("session", {}),
            fleet: (name) => get("fleet", { table: name }),
            overview: (refresh) => get("overview", { refresh: refresh ? "yes" : "" }),
            map: () => get("map", {}),
            plan: (where, footers, signal) => get("plan", { where, footers }, signal),
            file: (path, where) => get("file", { path, where }),
            cell: (lane, bin) => get("cell", { lane, bin }),
            doctor: () => get("doctor", {}),
            rewrite: (request, signal) => get("rewrite", request, signal),
            upgrade: (to) => get("upgrade", { to }),
            audit: () => get("audit", {}),
            async write(action, body) {
                const headers = { "Content-Type": "application/json", "X-Floeplan-Token": token };
                return answer(
                    await fetch(`/api/${action}`, {
                        method: "POST",
                        headers,
                        body: JSON.stringify({ table, ...body }),
                    }),
                );
            },
        };
    }

    function written() {
        const nothing = (what) => {
            throw new F.Failure(
                "static-report",
                `${what} needs the live explorer: floeplan serve ${report.overview.table}`,
            );
        };
        return {
            live: false,
            table: () => report.overview.table,
            choose() {},
            session: async () => ({
                tables: [report.overview.table],
                allow_writes: false,
                audit: Boolean(report.audit),
                version: report.version,
                made: report.made,
            }),
            overview: async () => report.overview,
            map: async () => report.map,
            predicates: () => report.plans.map((plan) => plan.where),
            async plan(where) {
                return report.plans.find((plan) => plan.where === where) || nothing("Planning other predicates");
            },
            async file(path, where) {
                const plan = report.plans.find((one) => one.where === where);
                return (plan && plan.details[path]) || nothing("Showing this file");
            },
            cell: async () => nothing("Listing the files of a cell"),
            doctor: async () => report.doctor,
            rewrite: async () => report.rewrite,
            upgrade: async () => report.upgrade || nothing("Previewing an upgrade"),
            audit: async () => report.audit || nothing("The audit"),
            write: async () => nothing("Changing the table"),
        };
    }

    F.source = report ? written() : server();
})((window.Floeplan = window.Floeplan || {}));
