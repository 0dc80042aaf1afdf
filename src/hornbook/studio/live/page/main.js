// The pages by their paths.
import { html, render } from "./vendor/standalone.module.js";
import { Explorer, Explorers } from "./explore.js";
import { Run } from "./run.js";
import { Compare, Runs } from "./runs.js";

function App() {
  const [, first, name] = location.pathname.split("/");
  const pages = { run: Run, explore: Explorer }, lists = { compare: Compare, explore: Explorers };
  const Page = name ? pages[first] : lists[first];
  const page = Page ? html`<${Page} name=${decodeURIComponent(name ?? "")}/>` : html`<${Runs}/>`;
  document.title = (name ? decodeURIComponent(name) + " - " : "") + "hornbook";
  return html`<header class="top"><a class="home" href="/">hornbook</a><a href="/">runs</a><a href="/explore">explore</a></header><main>${page}</main>`;
}

const root = document.getElementById("root");
root.replaceChildren();
render(html`<${App}/>`, root);
