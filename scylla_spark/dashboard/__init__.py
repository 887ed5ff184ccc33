"""The dashboard: pages for people, served under `/ui/` by the process of the API, and a client of that API like any other.

How a screen is added:

1. Write `my_screen.py` with views, `async def my_view(page: Page) -> Response`, and a tuple `ROUTES` of `shows("/ui/mine", my_view)` for
   what is looked at and `acts("/ui/mine:pause", my_act)` for what changes something. `acts` checks the form's token before the view runs.
2. A view gets everything by `await page.own.get("/v1/…", filter=…)` and `await page.own.post("/v1/…", body={…})`: with the token of the
   browser's session, so that the API alone decides. What the API refuses becomes a page by itself. What is missing there is added there.
3. It answers `page.shown("mine.html", name=value)`; an act answers `page.goes("/ui/mine", "What was done.")`.
4. The template extends `base.html` and fills the block `live`, which is asked for anew when something has happened, and `before` and
   `still`, which stay; a page that does not change by itself says `{% set refreshes = false %}`. `_parts.html` has the macros `state`,
   `token` (`token_once` in forms that make something, so that two presses do it once), `button`, `task_table` and `said_json`; filters
   are `name`, `count`, `span`, `ms`, `json`, `segment`; `moment(text)` writes an instant.
   No inline scripts or styles. Links are made by `url("/ui/mine", filter=…)`, parts of paths by `segment(name)`.
   In Python paths have no prefix: `page.goes` puts it on; `within("/ui/mine", filter=…)` makes one with a query.
5. Add the module to `SCREENS` in `app.py`, and its place in the navigation to `NAVIGATION` in `page_request.py`.
"""
