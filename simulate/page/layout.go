// SPDX-License-Identifier: GPL-2.0-or-later

package page

import "html/template"

var layout = template.Must(template.New("page").Parse(`<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{.Title}}</title>
<style>
:root { color-scheme: light dark; --ink: #1b1f24; --faint: #6a737d; --paper: #fff; --line: #d5d9de; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --faint: #9aa4af; --paper: #14171a; --line: #343a41; } }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 1180px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.4em; margin-bottom: .2em; } h2 { font-size: 1.15em; margin: 2em 0 .2em; border-top: 1px solid var(--line); padding-top: 1em; }
p, li { color: var(--faint); margin: .2em 0; }
.legend span { display: inline-block; margin: 0 1em .2em 0; white-space: nowrap; } .legend i { display: inline-block; width: .9em; height: .9em; border-radius: 2px; vertical-align: -.1em; margin-right: .3em; }
.timeline { width: 100%; height: auto; image-rendering: pixelated; border: 1px solid var(--line); margin: .6em 0; display: block; }
.cut { fill: #c81428; } .grid { stroke: var(--line); fill: none; } .due { stroke: var(--ink); stroke-dasharray: 4 3; fill: none; }
svg text { font: 11px system-ui, sans-serif; fill: var(--faint); } svg text.label { fill: var(--ink); } .line { fill: none; stroke: var(--ink); stroke-width: 1.8; }
.axis { width: 100%; display: block; margin: -.5em 0 .6em; }
.usage { display: grid; grid-template-columns: repeat(auto-fill, minmax(250px, 1fr)); gap: .6em 1em; } .usage figure { margin: 0; } .usage figcaption { font-size: .85em; } .usage small { color: var(--faint); }
.usage svg { width: 100%; border-bottom: 1px solid var(--line); } .usage svg text { paint-order: stroke; stroke: var(--paper); stroke-width: 3px; }
</style>
</head>
<body>
<h1>{{.Title}}</h1>
<p>{{.Subtitle}}</p>
{{if .Notes}}<ul>{{range .Notes}}<li>{{.}}</li>{{end}}</ul>{{end}}
<div class="legend">{{range .Legend}}<span><i style="background: {{.Colour}}"></i>{{.Name}}</span>{{end}}</div>
<h2>Waits</h2>
<p>The part of all jobs that had started after a wait. Those that had not by the end of the run keep a line below 100%. Unallocated jobs are left out.</p>
{{.Waits}}
<p>The same of debug jobs.</p>
{{.Debug}}
{{range .Panels}}
<h2>{{.Label}}</h2>
<p>{{.Facts}}. Time runs to the right, GPUs downwards; hatched is what may be preempted, a red edge where it was.</p>
{{.Timeline}}
{{$.Axis}}
<div class="usage">{{range .Usage}}<figure>{{.Chart}}<figcaption>{{.Account}} <small>{{.Facts}}</small></figcaption></figure>{{end}}</div>
{{end}}
<p>In the small charts: GPUs charged, fainter those that were unallocated, and dashed what the account was entitled to at the time.</p>
</body>
</html>
`))
