// Reads [{statements: [statement, …], decisions: [[action, resource, context, allowed], …]}, …], the format of
// tests/stacks/iam/decisions.json, and prints as JSON the decisions on which iam-simulate disagrees.
import { readFileSync } from 'node:fs'
import { runSimulation, runUnsafeSimulation } from '@cloud-copilot/iam-simulate'

const account = '123456789012'
const others = []
for (const { statements, decisions } of JSON.parse(readFileSync(0, 'utf8'))) {
  const policy = { Version: '2012-10-17', Statement: statements }
  for (const [action, resource, context, allowed] of decisions) {
    const simulation = {
      request: {
        action, principal: `arn:aws:sts::${account}:assumed-role/role/session`,
        resource: { resource, accountId: account },
        contextVariables: Object.fromEntries(Object.entries(context).map(
          ([key, values]) => [key, values.length === 1 && !key.startsWith('dynamodb:') ? values[0] : values]))
      },
      identityPolicies: [{ name: 'own', policy }],
      serviceControlPolicies: [], resourceControlPolicies: []
    }
    const response = await runSimulation(simulation, {})
    const isAliasOrVersion = response.errors?.message === 'multiple.resource.types'
    // It refuses to judge an ARN that may be an alias' or a version's; without that check it judges it.
    const answer = isAliasOrVersion ? runUnsafeSimulation(simulation, {})
      : response.resultType === 'error' ? JSON.stringify(response.errors) : response.overallResult
    if ((answer === 'Allowed') !== allowed) others.push({ action, resource, context, allowed, answer })
  }
}
console.log(JSON.stringify(others, null, 1))
