// The public openai client of npm, unmodified, against a running sluice. ../run.sh starts one.
import assert from 'node:assert/strict'
import test from 'node:test'
import OpenAI from 'openai'

const url = process.env.SLUICE_URL
assert.ok(url, 'SLUICE_URL is not set: conformance/run.sh sets it')
const client = new OpenAI({ baseURL: url + '/v1', apiKey: process.env.SLUICE_API_KEY, maxRetries: 0 })

const limit = Number(process.env.SLUICE_LIMIT ?? 16384)
const behind = process.env.SLUICE_BEHIND ?? 'native'

// What every engine says; some say more.
const counts = ({ prompt_tokens, completion_tokens, total_tokens }) => ({ prompt_tokens, completion_tokens, total_tokens })

const code = 'bPlNFGdSC2wd8f2Q'
const question = `The code of tenant 4711 is ${code}.\nThe code of tenant 4711 is`
const completion = { model: 'recall', prompt: question, max_tokens: 18, temperature: 0 }
const chat = { model: 'recall', messages: [{ role: 'user', content: question }], max_completion_tokens: 24, temperature: 0 }

test('models', async () => {
  const { data } = await client.models.list()
  assert.deepEqual(data.map((m) => [m.id, m.max_model_len]), [['recall', limit]])
})

test('chat, whole and streamed', async () => {
  const r = await client.chat.completions.create(chat)
  assert.equal(r.choices.length, 1)
  assert.equal(r.choices[0].message.role, 'assistant')
  assert.ok(r.choices[0].message.content)
  assert.equal(r.usage.total_tokens, r.usage.prompt_tokens + r.usage.completion_tokens)
  let text = ''
  let finish = null
  for await (const c of await client.chat.completions.create({ ...chat, stream: true })) {
    text += c.choices[0]?.delta?.content ?? ''
    finish = c.choices[0]?.finish_reason ?? finish
  }
  assert.equal(text, r.choices[0].message.content)
  assert.equal(finish, r.choices[0].finish_reason)
})

test('completion, of text and of token ids', async () => {
  const r = await client.completions.create(completion)
  assert.equal(r.choices[0].text, ` ${code}.`)
  assert.equal(r.choices[0].finish_reason, 'length')
  assert.deepEqual(counts(r.usage), { prompt_tokens: question.length + 1, completion_tokens: 18, total_tokens: question.length + 19 })
  const ids = await client.completions.create({ ...completion, prompt: [...Buffer.from(question)] })
  assert.equal(ids.choices[0].text, ` ${code}.`)
  assert.equal(ids.usage.prompt_tokens, question.length)
})

test('stream, with usage when asked for', async () => {
  for (const usage of [true, false]) {
    const options = usage ? { stream_options: { include_usage: true } } : {}
    const chunks = []
    for await (const c of await client.completions.create({ ...completion, stream: true, ...options })) chunks.push(c)
    assert.equal(chunks.map((c) => c.choices[0]?.text ?? '').join(''), ` ${code}.`)
    const last = chunks.at(-1)
    assert.equal(last.usage?.completion_tokens, usage ? 18 : undefined)
    assert.equal(last.choices.length, usage ? 0 : 1)
  }
})

test('stop and seed', async () => {
  const r = await client.completions.create({ ...completion, stop: ['never', code.slice(8, 10)] })
  assert.equal(r.choices[0].text, ' ' + code.slice(0, 8))
  assert.equal(r.choices[0].finish_reason, 'stop')
  const hot = { ...completion, prompt: 'The river turned slowly past old mills. The river ', temperature: 2, seed: 7, max_tokens: 64 }
  const [a, b] = [await client.completions.create(hot), await client.completions.create(hot)]
  assert.equal(a.choices[0].text, b.choices[0].text)
})

test('errors', async () => {
  const long = 'x'.repeat(20000)
  await assert.rejects(client.completions.create({ ...completion, prompt: long }), (e) => {
    assert.ok(e instanceof OpenAI.BadRequestError)
    assert.deepEqual([e.status, e.code, e.type, e.param], [400, 'context_length_exceeded', 'invalid_request_error', 'prompt'])
    assert.match(e.message, new RegExp(`20001.*${process.env.SLUICE_FITS ?? limit}`))
    return true
  })
  await assert.rejects(client.chat.completions.create({ ...chat, messages: [{ role: 'user', content: long }], stream: true }), (e) => {
    assert.ok(e instanceof OpenAI.BadRequestError)
    assert.equal(e.code, 'context_length_exceeded')
    return true
  })
  await assert.rejects(client.completions.create({ ...completion, model: 'gpt-4' }), (e) => e instanceof OpenAI.NotFoundError && e.code === 'model_not_found')
  // One worker may answer twice.
  if (!behind.startsWith('plain')) await assert.rejects(client.chat.completions.create({ ...chat, n: 2 }), (e) => e instanceof OpenAI.BadRequestError && e.param === 'n')
  const stranger = new OpenAI({ baseURL: url + '/v1', apiKey: 'sk-other', maxRetries: 0 })
  await assert.rejects(stranger.completions.create(completion), (e) => e instanceof OpenAI.AuthenticationError && e.code === 'invalid_api_key')
})

test('a cancelled stream gives its pages back', async () => {
  const abort = new AbortController()
  const stream = await client.completions.create(
    { ...completion, prompt: (question + ' ').repeat(40), max_tokens: 10000, stream: true },
    { signal: abort.signal },
  )
  let chunks = 0
  try {
    for await (const _ of stream) if (++chunks === 1) abort.abort()
  } catch (e) {
    assert.ok(e instanceof OpenAI.APIUserAbortError)
  }
  assert.ok(chunks > 0)
  const until = Date.now() + 30000
  for (;;) {
    const fleet = await (await fetch(process.env.SLUICE_ADMIN + '/admin/fleet')).json()
    if (fleet.pool_total > 0 && fleet.pool_free === fleet.pool_total) return
    // Before other engines the gateway counts tokens in flight.
    if (behind !== 'native' && !/"load_tokens": ?[1-9]/.test(JSON.stringify(fleet))) return
    assert.ok(Date.now() < until, `${fleet.pool_free} of ${fleet.pool_total} pages are free`)
    await new Promise((r) => setTimeout(r, 5))
  }
})
