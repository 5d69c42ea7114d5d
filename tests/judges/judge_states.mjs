// Reads state machines, a list of them, and prints what is wrong with each, as a list of texts; empty if nothing is.
import { readFileSync } from 'node:fs'
import validate from 'asl-validator'

console.log(JSON.stringify(JSON.parse(readFileSync(0, 'utf8')).map((machine) => {
  const { isValid, errorsText } = validate(machine)
  return isValid ? '' : errorsText()
})))
