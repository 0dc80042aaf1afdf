// The pages by their paths.
import { html, render } from "./vendor/standalone.module.js";
import { Run } from "./run.js";
import { Compare, Runs } from "./runs.js";

function App() {
  const [, first, name] = location.pathname.split("/");
  const page = first === "run" && name ? html`<${Run} name=${decodeURIComponent(name)}/>` : first === "compare" ? html`<${Compare}/>` : html`<${Runs}/>`;
  document.title = (name ? decodeURIComponent(name) + " - " : "") + "hornbook";
  return html`<header class="top"><a class="home" href="/">hornbook</a><a href="/">runs</a></header><main>${page}</main>`;
}

const root = document.getElementById("root");
root.replaceChildren();
render(html`<${App}/>`, root);
