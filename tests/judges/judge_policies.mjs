// Reads {policies: [[document, …], …], decisions: [[[action, resource, context, allowed], …], …]}, as
// tests/stacks/iam/decisions.json has it, and prints the decisions that iam-simulate makes otherwise, as JSON.
import { readFileSync } from 'node:fs'
import { runSimulation } from '@cloud-copilot/iam-simulate'

const account = '123456789012'
const given = JSON.parse(readFileSync(0, 'utf8'))
const others = []
for (const [number, documents] of given.policies.entries()) {
  for (const [action, resource, context, allowed] of given.decisions[number]) {
    const response = await runSimulation({
      request: {
        action, principal: `arn:aws:sts::${account}:assumed-role/role/session`,
        resource: { resource, accountId: account },
        contextVariables: Object.fromEntries(Object.entries(context).map(
          ([key, values]) => [key, values.length === 1 && !key.startsWith('dynamodb:') ? values[0] : values]))
      },
      identityPolicies: documents.map((policy, index) => ({ name: `policy ${index}`, policy })),
      serviceControlPolicies: [], resourceControlPolicies: []
    }, {})
    const answer = response.resultType === 'error' ? JSON.stringify(response.errors) : response.overallResult
    if ((answer === 'Allowed') !== allowed) others.push({ action, resource, context, allowed, answer })
  }
}
console.log(JSON.stringify(others, null, 1))
