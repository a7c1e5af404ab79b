// How pages begin and how they look, by day and by night.
#pragma once

#include <string>
#include <string_view>

namespace equitile {

inline constexpr const char* kPageStyle = R"html(:root {
  --page: #f6f7f9; --card: #ffffff; --ink: #14181f; --soft: #5d6675; --line: #dfe3e9; --faint: #eef0f4;
  --accent: #2457d6; --compute: #2f6fdf; --exchange: #f0a020; --wait: #d3d8e0; --critical: #d1343c; --pick: #e9f0ff;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #0e1116; --card: #171b22; --ink: #e9edf3; --soft: #97a1b1; --line: #2a313c; --faint: #1f252e;
    --accent: #7fa8ff; --compute: #5b93f5; --exchange: #f2b143; --wait: #363e4b; --critical: #ff6b70; --pick: #1d2a44;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.45 system-ui, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 32px 24px 56px; }
h1 { font-size: 30px; line-height: 1.15; margin: 0 0 6px; letter-spacing: -0.02em; overflow-wrap: anywhere; }
h2 { font-size: 18px; margin: 0; letter-spacing: -0.01em; }
.soft { color: var(--soft); }
.why { font-size: 17px; margin: 14px 0 0; max-width: 74ch; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 14px; padding: 20px 22px; margin-top: 20px; }
.top { display: flex; flex-wrap: wrap; gap: 8px 18px; align-items: baseline; justify-content: space-between; margin-bottom: 12px; }
label { color: var(--soft); font-size: 13px; }
select { font: inherit; color: var(--ink); background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 4px 8px; }
.num { font-variant-numeric: tabular-nums; }
.small { font-size: 13px; }
.key { display: inline-flex; vertical-align: middle; align-items: center; gap: 6px; margin-right: 14px; font-size: 13px; color: var(--soft); }
.key i { width: 12px; height: 12px; border-radius: 3px; display: inline-block; }
.key i.rule { height: 0; border-radius: 0; width: 16px; border-top: 2px solid; }
@media (max-width: 600px) { section { padding: 16px 14px; overflow-x: auto; } main { padding: 24px 14px 40px; } }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 500; font-size: 13px; color: var(--soft); padding: 6px 14px 6px 0; border-bottom: 1px solid var(--line); }
td { padding: 6px 14px 6px 0; border-bottom: 1px solid var(--faint); }
canvas { display: block; width: 100%; }
figure { margin: 0; min-width: 0; }
figcaption { font-size: 13px; color: var(--soft); margin-top: 5px; overflow-wrap: anywhere; }
svg text { font: 12px system-ui, sans-serif; fill: var(--soft); }
#tip { position: fixed; pointer-events: none; background: var(--ink); color: var(--page); padding: 5px 9px; border-radius: 7px; font-size: 13px;
  white-space: pre; visibility: hidden; z-index: 2; }
)html";

inline constexpr const char* kPageScript =
    R"html(// 1, 2 or 5 times a power of ten: at most `most` of them in `span`.
function roundStep(span, most) {
  if (!(span > 0)) return 0;
  const least = span / most, power = 10 ** Math.floor(Math.log10(least));
  return power * [1, 2, 5, 10].find(times => times * power >= least * 0.9999);
}
)html";

// The page of a command, up to the end of kPageStyle: what a page adds to the style comes next.
inline std::string PageHead(std::string_view command) {
  return R"html(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>equitile )html" +
         std::string(command) + "</title>\n<script>\n" + kPageScript + "</script>\n<style>\n" +
         kPageStyle;
}

}  // namespace equitile
