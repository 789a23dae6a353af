// The chat: sends the conversation so far, shows the answer as it comes, then when its first token came and how fast
// the others did. The conversation lives in this page alone.
"use strict";
(() => {
  const form = document.getElementById("ask");
  if (!form) return;
  const [turns, question, model, stop, anew] = ["turns", "question", "model", "stop", "anew"].map((id) =>
    document.getElementById(id));
  const send = form.querySelector("button");
  let messages = [];
  let under_way = null;

  const add = (role) => {
    const turn = document.createElement("div");
    turn.className = `turn ${role}`;
    turns.append(turn);
    return turn;
  };

  const line = (turn, name, text) => {
    let found = turn.querySelector(`.${name}`);
    if (!found) {
      found = document.createElement(name === "figures" ? "small" : "p");
      found.className = name;
      turn.append(found);
    }
    found.textContent += text;
  };

  // A piece of the network may end within an event, or hold several.
  async function* events(stream) {
    const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const one of lines) if (one.startsWith("data: {")) yield JSON.parse(one.slice(6));
    }
  }

  const figures = (began, first, last, tokens, asked) => {
    if (!first) return "no token came";
    const told = [`first token after ${((first - began) / 1000).toFixed(2)} s`];
    if (tokens > 1 && last > first) told.push(`${((tokens - 1) / ((last - first) / 1000)).toFixed(1)} tok/s`);
    told.push(`${tokens} tokens out${asked ? `, ${asked} in` : ""}`);
    return told.join(" · ");
  };

  const answer = async (turn) => {
    const began = performance.now();
    let [first, last, tokens, asked, text] = [0, 0, 0, 0, ""];
    const response = await fetch("/api/chat", {
      method: "POST", signal: under_way.signal, headers: { "content-type": "application/json" },
      body: JSON.stringify({ model: model.value, messages }),
    });
    if (!response.ok) {
      const { message, hint } = (await response.json()).error;
      throw new Error(hint ? `${message}; ${hint}` : message);
    }
    try {
      for await (const event of events(response.body)) {
        if (event.error) throw new Error(event.error.message ?? "the answer broke off");
        const delta = event.choices?.[0]?.delta ?? {};
        const thought = delta.reasoning_content ?? delta.reasoning ?? "";
        if (delta.content || thought) {
          last = performance.now();
          first ||= last;
          tokens += 1;
          if (thought) line(turn, "thought", thought);
          if (delta.content) line(turn, "said", delta.content);
          text += delta.content ?? "";
        }
        if (event.usage) [tokens, asked] = [event.usage.completion_tokens, event.usage.prompt_tokens];
      }
    } finally {
      messages.push({ role: "assistant", content: text });
      line(turn, "figures", figures(began, first, last, tokens, asked));
    }
  };

  const busy = (yes) => {
    send.disabled = yes;
    stop.hidden = !yes;
    anew.hidden = yes || !messages.length;
  };

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const asked = question.value.trim();
    if (!asked || under_way) return;
    messages.push({ role: "user", content: asked });
    line(add("user"), "said", asked);
    question.value = "";
    under_way = new AbortController();
    busy(true);
    const turn = add("assistant");
    try {
      await answer(turn);
    } catch (error) {
      const stopped = error.name === "AbortError";
      turn.classList.toggle("failed", !stopped);
      line(turn, "figures", stopped ? " · stopped" : ` ${error.message}`);
    }
    under_way = null;
    busy(false);
    turn.scrollIntoView({ block: "nearest" });
    question.focus();
  });

  question.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  stop.addEventListener("click", () => under_way?.abort());
  anew.addEventListener("click", () => {
    messages = [];
    turns.replaceChildren();
    busy(false);
    question.focus();
  });
})();
