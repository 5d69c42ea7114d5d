// Reads a list of state machines and prints a list with each one's errors, an empty string if it has none.
import { readFileSync } from 'node:fs'
import validate from 'asl-validator'

console.log(JSON.stringify(JSON.parse(readFileSync(0, 'utf8')).map((machine) => {
  const { isValid, errorsText } = validate(machine)
  return isValid ? '' : errorsText()
})))
