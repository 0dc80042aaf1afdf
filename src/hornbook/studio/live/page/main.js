// The pages by their paths.
import { html, render } from "./vendor/standalone.module.js";
import { Explorer, Explorers } from "./explore.js";
import { Run } from "./run.js";
import { Compare, Runs } from "./runs.js";
import { site } from "./text.js";

function App() {
  const place = site.place(), [, first, name] = place.pathname.split("/");
  const pages = { run: Run, explore: Explorer }, lists = { compare: Compare, explore: Explorers };
  const Page = name ? pages[first] : lists[first];
  const page = Page ? html`<${Page} key=${place.href} name=${decodeURIComponent(name ?? "")}/>` : html`<${Runs}/>`;
  document.title = (name ? decodeURIComponent(name) + " - " : "") + "hornbook";
  return html`<header class="top"><a class="home" href=${site.link("/")}>hornbook</a>${site.runs && html`<a href="/">runs</a>`}<a href=${site.link("/explore")}>explore</a></header><main>${page}</main>`;
}

const root = document.getElementById("root"), draw = () => render(html`<${App}/>`, root);
root.replaceChildren();
draw();
addEventListener("hashchange", draw); // on public pages a link changes the part behind #
