// What llama.cpp makes of a model file: token ids of texts, and greedy replies to conversations, token by token with
// the margin by which each won. The conversations are rendered by Hugging Face's template engine, so neither our
// tokenizer nor our templates have a part in it.
//
//   node peer.mjs MODEL.gguf CASES.json PEER.json
import fs from "node:fs";
import {Template} from "@huggingface/jinja";
import {getLlama, LlamaLogLevel} from "node-llama-cpp";

const [, , file, casesFile, outFile] = process.argv;
const cases = JSON.parse(fs.readFileSync(casesFile, "utf8"));
const llama = await getLlama({gpu: false, build: "never", logLevel: LlamaLogLevel.error, progressLogs: false});
const model = await llama.loadModel({modelPath: file});
const meta = model.fileInfo.metadata;
const out = {llamacpp: llama.llamaCppRelease?.release ?? "", texts: [], chats: []};

for (const text of cases.texts)
    out.texts.push({
        plain: Array.from(model.tokenize(text, false)),
        special: Array.from(model.tokenize(text, true))
    });

const template = new Template(meta.tokenizer.chat_template);
const context = await model.createContext({contextSize: 2048, sequences: 1, batchSize: 512, threads: 2, flashAttention: false});
const sequence = context.getSequence();

// After one token: the best id, its margin over the second in logits.
function best(probabilities) {
    let id = -1, p1 = -1, p2 = -1;
    for (const [t, p] of probabilities) {
        if (p > p1 || (p === p1 && t < id)) [p2, p1, id] = [p1, p, t];
        else if (p > p2) p2 = p;
    }
    return {id, margin: Math.log(p1) - Math.log(p2)};
}

for (const chat of cases.chats) {
    const text = template.render({
        messages: chat.messages, add_generation_prompt: true,
        bos_token: model.tokens.bosString ?? "", eos_token: model.tokens.eosString ?? ""
    });
    const prompt = Array.from(model.tokenize(text, true));
    if (model.tokens.shouldPrependBosToken && prompt[0] !== model.tokens.bos)
        prompt.unshift(model.tokens.bos);
    await sequence.clearHistory();
    const reply = [], margins = [];
    let input = prompt;
    for (let ended = false; !ended && reply.length < cases.reply;) {
        const next = {probabilities: true, options: {temperature: 1, topK: 0, topP: 1, minP: 0}};
        const results = await sequence.controlledEvaluate(
            input.map((token, i) => i === input.length - 1 ? [token, {generateNext: next}] : token));
        const {id, margin} = best(results[input.length - 1].next.probabilities);
        ended = model.isEogToken(id);
        reply.push(id);
        margins.push(Number.isFinite(margin) ? margin : 99);
        input = [id];
    }
    out.chats.push({prompt, reply, margins});
}
fs.writeFileSync(outFile, JSON.stringify(out));
process.exit(0);
