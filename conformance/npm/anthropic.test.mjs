// The public client of npm for Anthropic's API, unmodified, against a running sluice before plain workers. ../run.sh starts one.
import assert from 'node:assert/strict'
import test from 'node:test'
import Anthropic from '@anthropic-ai/sdk'

const skip = !process.env.SLUICE_BEHIND?.startsWith('plain') && 'only plain workers offer /v1/messages'
const open = (apiKey) => new Anthropic({ baseURL: process.env.SLUICE_URL, apiKey, maxRetries: 0 })
const ask = (content) => ({ model: 'recall', max_tokens: 24, messages: [{ role: 'user', content }] })
const question = 'The code of tenant 4711 is bPlNFGdSC2wd8f2Q.\nThe code of tenant 4711 is'

// spoken is a message's text, whole and streamed, which are the same.
async function spoken (asked) {
  const client = open(process.env.SLUICE_API_KEY)
  const r = await client.messages.create(asked)
  assert.ok(r.stop_reason)
  const stream = client.messages.stream(asked)
  let text = ''
  stream.on('text', (piece) => { text += piece })
  const last = await stream.finalMessage()
  assert.equal(text, r.content[0].text)
  assert.equal(last.content[0].text, r.content[0].text)
  assert.equal(last.stop_reason, r.stop_reason)
  assert.equal(last.usage.output_tokens, r.usage.output_tokens)
  return { text, usage: r.usage }
}

const code = /^ bPlNFGdSC2wd8f2Q/

test('messages, whole and streamed', { skip }, async () => {
  const one = await spoken(ask(question))
  assert.match(one.text, code)
  const more = await spoken(ask('Hey, \n' + question))
  assert.equal(more.usage.input_tokens, one.usage.input_tokens + 6)
})

test('messages with a system, a tool and a stop', { skip }, async () => {
  const system = await spoken({ ...ask('The code of tenant 4711 is'), system: 'The code of tenant 4711 is bPlNFGdSC2wd8f2Q.' })
  assert.match(system.text, code)
  const stop = await spoken({ ...ask(question), stop_sequences: ['S'] })
  assert.equal(stop.text, ' bPlNFGd')
  const tool = await spoken({
    model: 'recall',
    max_tokens: 24,
    tools: [{ name: 'code', input_schema: { type: 'object', properties: { tenant: { type: 'integer' } } } }],
    messages: [
      { role: 'user', content: 'What is the code of tenant 4711?' },
      { role: 'assistant', content: [{ type: 'tool_use', id: 'toolu_1', name: 'code', input: { tenant: 4711 } }] },
      { role: 'user', content: [{ type: 'tool_result', tool_use_id: 'toolu_1', content: question }] }
    ]
  })
  assert.match(tool.text, code)
})

test('messages, refused', { skip }, async () => {
  const client = open(process.env.SLUICE_API_KEY)
  const is = (kind, words) => (e) => e instanceof kind && e.error.error.type === words
  await assert.rejects(client.messages.create(ask('x'.repeat(20000))), is(Anthropic.BadRequestError, 'invalid_request_error'))
  await assert.rejects(client.messages.create({ ...ask(question), model: 'other' }), is(Anthropic.NotFoundError, 'not_found_error'))
  await assert.rejects(open('sk-other').messages.create(ask(question)), is(Anthropic.AuthenticationError, 'authentication_error'))
})
