"""Twenty model calls in one program, at most four at a time, whatever else uses this account on this machine."""

import asyncio

import fleetgate


async def call(gate: fleetgate.Gate, number: int) -> str:
    async with gate.lease("umans/coder", project="web") as lease:
        await asyncio.sleep(0.01)  # here your program would call the provider
        return f"answer {number} from {lease.model}"


async def main() -> None:
    async with fleetgate.open_gate() as gate:
        await gate.set_cap("umans", 4)
        answers = await asyncio.gather(*(call(gate, number) for number in range(20)))
        print(len(answers), "answers, the last is:", answers[-1])


asyncio.run(main())
