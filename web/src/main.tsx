import "@xterm/xterm/css/xterm.css";
import "./styles/terminal.css";
import { render } from "preact";
import { targetOf } from "./net/api";
import { Chooser } from "./ui/chooser";
import { TerminalPage } from "./ui/page";
import { Session } from "./ui/session";

const { sandbox, terminal, share } = targetOf(new URL(location.href));
const page = document.getElementById("page");
if (page !== null) {
  if (sandbox !== null && terminal !== null) {
    render(<TerminalPage session={new Session({ sandbox, terminal, share })} />, page);
  } else {
    render(<Chooser sandbox={sandbox} />, page);
  }
}
