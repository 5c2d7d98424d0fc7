// The public client of npm for Anthropic's API, unmodified, against a running sluice before plain workers. ../run.sh starts one.
import assert from 'node:assert/strict'
import test from 'node:test'
import Anthropic from '@anthropic-ai/sdk'

const skip = process.env.SLUICE_BEHIND !== 'plain' && 'only plain workers offer /v1/messages'
const open = (apiKey) => new Anthropic({ baseURL: process.env.SLUICE_URL, apiKey, maxRetries: 0 })
const ask = (content) => ({ model: 'recall', max_tokens: 24, messages: [{ role: 'user', content }] })
const question = 'The code of tenant 4711 is bPlNFGdSC2wd8f2Q.\nThe code of tenant 4711 is'

test('messages, whole and streamed', { skip }, async () => {
  const client = open(process.env.SLUICE_API_KEY)
  const r = await client.messages.create(ask(question))
  assert.ok(r.content[0].text)
  assert.ok(r.stop_reason)
  assert.ok(r.usage.input_tokens >= question.length)
  const last = await client.messages.stream(ask(question)).finalMessage()
  assert.equal(last.content[0].text, r.content[0].text)
  assert.equal(last.stop_reason, r.stop_reason)
  assert.equal(last.usage.output_tokens, r.usage.output_tokens)
})

test('messages, refused', { skip }, async () => {
  const client = open(process.env.SLUICE_API_KEY)
  const is = (kind, words) => (e) => e instanceof kind && e.error.error.type === words
  await assert.rejects(client.messages.create(ask('x'.repeat(20000))), is(Anthropic.BadRequestError, 'invalid_request_error'))
  await assert.rejects(client.messages.create({ ...ask(question), model: 'other' }), is(Anthropic.NotFoundError, 'not_found_error'))
  await assert.rejects(open('sk-other').messages.create(ask(question)), is(Anthropic.AuthenticationError, 'authentication_error'))
})
