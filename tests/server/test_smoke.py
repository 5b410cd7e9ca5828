from .conftest import Harness


async def test_a_sandbox_is_made_and_calls_reach_its_guest(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox()
    got = (await cloche.client.get(f"/v1/sandboxes/{sandbox_id}")).json()
    assert got["state"] == "running"
    r = await cloche.client.post(f"/v1/sandboxes/{sandbox_id}/contexts/default/runs", json={"code": "1+1"})
    assert r.status_code == 200, r.text
    assert r.json()["target"] == "/v1/contexts/default/runs?wait_s=30.0"
    print(r.json(), r.headers)
    r = await cloche.client.delete(f"/v1/sandboxes/{sandbox_id}")
    assert r.status_code == 200, r.text
    assert r.json()["state"] == "deleted"
    assert (await cloche.client.delete(f"/v1/sandboxes/{sandbox_id}")).status_code == 410
