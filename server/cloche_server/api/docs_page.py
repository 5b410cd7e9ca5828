"""The page at /docs: one file, no scripts from elsewhere. It reads /openapi.json and shows it."""

from __future__ import annotations

import base64
import hashlib
from typing import Final

_SCRIPT: Final = """
const el = (tag, text, cls) => { const e = document.createElement(tag); if (text) e.textContent = text;
  if (cls) e.className = cls; return e; };
const name = s => !s ? '' : s.$ref ? s.$ref.split('/').pop() : s.anyOf ? s.anyOf.map(name).join(' | ')
  : s.type === 'array' ? name(s.items) + '[]' : s.enum ? s.enum.join(' | ') : s.const !== undefined ? String(s.const)
  : s.type || 'any';
const link = s => { const n = name(s); const base = n.replace('[]', ''); const a = el('a', n);
  if (s && JSON.stringify(s).includes('$ref')) a.href = '#' + base; return a; };
fetch('/openapi.json').then(r => r.json()).then(api => {
  const main = document.querySelector('main');
  main.append(el('p', api.info.description));
  for (const [path, methods] of Object.entries(api.paths)) for (const [method, op] of Object.entries(methods)) {
    const box = el('details'); const head = el('summary');
    head.append(el('b', method.toUpperCase(), method), ' ', el('code', path), ' ', el('span', op.summary));
    box.append(head);
    const rows = el('table');
    const row = (a, b, c) => { const tr = el('tr'); for (const x of [a, b, c]) { const td = el('td');
      td.append(x || ''); tr.append(td); } rows.append(tr); };
    for (const p of op.parameters || []) row(p.in, p.name, name(p.schema) + (p.description ? ': ' + p.description : ''));
    for (const [type, m] of Object.entries(op.requestBody?.content || {})) row('body', type, link(m.schema));
    for (const [status, r] of Object.entries(op.responses)) {
      const m = Object.entries(r.content || {})[0];
      row(status, r.description, m ? link(m[1].schema) : ''); }
    box.append(rows); main.append(box); }
  main.append(el('h2', 'Models'));
  for (const [n, s] of Object.entries(api.components.schemas)) {
    const box = el('details'); box.id = n; box.append(el('summary', n)); if (s.description) box.append(el('p', s.description));
    const rows = el('table');
    for (const [f, p] of Object.entries(s.properties || {})) { const tr = el('tr');
      for (const x of [el('code', f), link(p), el('span', p.description)]) { const td = el('td'); td.append(x); tr.append(td); }
      rows.append(tr); }
    box.append(rows); main.append(box); }
  const open = () => { const t = document.getElementById(location.hash.slice(1)); if (t) { t.open = true; t.scrollIntoView(); } };
  addEventListener('hashchange', open); open();
});
"""

_STYLE: Final = """
:root { color-scheme: light dark } body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
details { border: 1px solid #8884; border-radius: 6px; margin: .4rem 0; padding: .3rem .8rem } summary { cursor: pointer }
summary b { display: inline-block; min-width: 4.5em } summary span { opacity: .7 } td { padding: .1rem .8rem .1rem 0; vertical-align: top }
.get { color: #2a7 } .post { color: #27c } .patch { color: #a70 } .delete { color: #c33 } p { white-space: pre-line }
"""


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


DOCS_CSP: Final = (
    f"default-src 'none'; connect-src 'self'; script-src 'sha256-{_digest(_SCRIPT)}'; "
    f"style-src 'sha256-{_digest(_STYLE)}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Only this very script and style, and only this server to fetch from."""

DOCS_PAGE: Final = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Cloche API</title>'
    f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>'
    f"<body><h1>Cloche API</h1><main></main><script>{_SCRIPT}</script></body></html>"
).encode()
