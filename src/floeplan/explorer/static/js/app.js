/* The page: table, view and theme. */
(function (F) {
    "use strict";

    const VIEWS = [
        ["plan", "Plan"],
        ["history", "History"],
        ["rewrite", "Rewrite"],
        ["health", "Health"],
        ["audit", "Audit"],
    ];
    const THEMES = { auto: ["◐", "system"], light: ["☀", "light"], dark: ["☾", "dark"] };
    const main = document.getElementById("main");
    let shared = null;

    /** State shared by all views; documents that do not change are fetched once. */
    function share(session, overview) {
        const once = (ask) => {
            let found = null;
            return () =>
                (found =
                    found ||
                    ask().catch((failure) => {
                        found = null;
                        throw failure;
                    }));
        };
        return {
            session,
            overview,
            where: F.source.live ? "" : F.source.predicates()[0],
            map: once(F.source.map),
            doctor: once(F.source.doctor),
            audit: once(F.source.audit),
            reload: () => start(true),
        };
    }

    let starts = 0;
    let counts = null;

    async function start(refresh) {
        // Another table may be chosen while this one is loaded: only the last start goes on.
        const mine = (starts += 1);
        const isLast = () => mine === starts;
        let session = null;
        try {
            session = await F.source.session();
            if (!isLast()) return;
            if (!F.source.table() && session.tables.length === 1) F.source.choose(session.tables[0]);
            if (!F.source.table()) {
                await chooseTable(session);
                return;
            }
            F.fill(main, F.el("p", { class: "wait" }, "Reading the table…"));
            const where = shared ? shared.where : null;
            const overview = await F.source.overview(refresh);
            if (!isLast()) return;
            shared = share(session, overview);
            if (where !== null) shared.where = where;
            counts = null;
            head(session, overview);
            await show();
            if (isLast()) await count(shared);
        } catch (failure) {
            if (!isLast()) return;
            shared = null;
            if (session && F.source.table()) head(session, null);
            F.fill(document.getElementById("tabs"));
            F.fill(main, F.note(failure.message, "bad"));
            await examine();
        }
    }

    /** Show the doctor's findings for a table that cannot be loaded. */
    async function examine() {
        const found = F.source.table() ? await F.source.doctor().catch(() => null) : null;
        if (found) F.add(main, F.healthCard(found));
    }

    function chooseTable(session) {
        return F.fleet(main, session, (name) => {
            F.source.choose(name);
            start();
        });
    }

    /** The choice of tables, and the facts of the chosen one; `overview` is null if it cannot be loaded. */
    function head(session, overview) {
        const choice = document.getElementById("table-choice");
        const name = overview ? overview.table : F.source.table();
        const shown =
            session.tables.length > 1
                ? F.el(
                      "select",
                      {
                          "aria-label": "Table",
                          class: "mono",
                          on: {
                              change: (event) => {
                                  shared = null;
                                  F.source.choose(event.target.value);
                                  start();
                              },
                          },
                      },
                      session.tables.map((one) => F.el("option", { value: one, selected: one === name }, one)),
                  )
                : F.el(
                      "span",
                      { class: "name", title: name },
                      name.includes("/") ? name.split("/").slice(-3).join("/") : name,
                  );
        F.fill(
            choice,
            shown,
            overview ? F.el("span", { class: "faint small" }, `format ${overview.format_version}`) : null,
            session.allow_writes ? F.tag("warn", "writes allowed") : null,
        );
        document.title = `${name} · Floeplan`;
        // Back to the front page, where there is one.
        document.querySelector(".brand").setAttribute("href", session.tables.length > 1 ? "./" : "#/plan");
        const made = F.source.live ? `served at ${location.host}` : `report of ${session.made}`;
        const facts = overview ? ` · ${overview.location} · snapshot ${overview.snapshot_id || "none"}` : "";
        F.fill(document.getElementById("foot"), `Floeplan ${session.version}, ${made}${facts}`);
    }

    const view = () => {
        const name = location.hash.replace("#/", "");
        return VIEWS.some(([known]) => known === name) ? name : "plan";
    };

    function tabs(counts) {
        const chosen = view();
        F.fill(
            document.getElementById("tabs"),
            VIEWS.map(([name, text]) =>
                F.el(
                    "a",
                    { href: `#/${name}`, "aria-current": name === chosen ? "page" : null },
                    text,
                    counts && counts[name]
                        ? F.el("span", { class: `count ${counts[name].kind}` }, counts[name].number)
                        : null,
                ),
            ),
        );
    }

    let shows = 0;

    async function show() {
        const mine = (shows += 1);
        tabs(counts);
        const place = F.el("div", { class: "stack wide" });
        F.fill(main, place);
        try {
            await F.views[view()](place, shared);
        } catch (failure) {
            if (mine === shows) F.fill(place, F.note(failure.message, "bad"));
        }
        F.redrawAll();
    }

    /** The number of findings beside the name of the view that has them; loaded after the page. */
    async function count(state) {
        if (F.source.live && state.overview.files > 50000) return;
        const found = await state.doctor().catch(() => null);
        if (state !== shared) return;
        const serious = found ? found.findings.filter((one) => one.severity !== "info") : [];
        counts = serious.length
            ? {
                  health: {
                      number: serious.length,
                      kind: serious.some((one) => one.severity === "error") ? "error" : "",
                  },
              }
            : null;
        tabs(counts);
    }

    function theme(chosen) {
        const button = document.getElementById("theme");
        if (chosen === "auto") delete document.documentElement.dataset.theme;
        else document.documentElement.dataset.theme = chosen;
        button.textContent = THEMES[chosen][0];
        button.setAttribute("aria-label", `Colours: ${THEMES[chosen][1]}`);
        button.title = `Colours: ${THEMES[chosen][1]}`;
        button.dataset.chosen = chosen;
        try {
            localStorage.setItem("floeplan-theme", chosen);
        } catch {
            /* a page from a file may have no storage */
        }
        F.redrawAll();
    }

    function remembered() {
        try {
            const kept = localStorage.getItem("floeplan-theme");
            return kept in THEMES ? kept : "auto";
        } catch {
            return "auto";
        }
    }

    document.getElementById("theme").addEventListener("click", (event) => {
        const names = Object.keys(THEMES);
        theme(names[(names.indexOf(event.currentTarget.dataset.chosen) + 1) % names.length]);
    });
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => F.redrawAll());
    window.addEventListener("hashchange", () => {
        if (shared) show().then(() => main.focus({ preventScroll: true }));
    });
    theme(remembered());
    start();
})((window.Floeplan = window.Floeplan || {}));
