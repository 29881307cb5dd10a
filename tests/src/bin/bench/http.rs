//! Signed small reads, with the ingress on one core; the servers and the load take what there is.

use std::time::Duration;

use pipeline::{
    Rig,
    http_load::{self, SignedRead},
};
use serde_json::json;

use super::common::{Watch, quantile};

pub(super) async fn run(during: Duration, connections: usize, log: &str) {
    let mut rig = Rig::measured().await.with("LOG", log);
    // What it starts stays on the core it is on itself: the ingress knows of one, and has threads for one.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    http_load::pin(std::process::id(), "0");
    rig.start("ingress", &["ingress"]).await;
    http_load::pin(std::process::id(), &format!("0-{}", cores - 1));
    let contact =
        rig.client.post("/v1/contacts", json!({"email": "ann@example.com", "first_name": "Ann"})).await.expect(201);
    let read = SignedRead {
        product: rig.client.product().to_owned(),
        key: rig.client.key().to_owned(),
        path: format!("/v1/contacts/{}", contact["contact_id"].as_str().unwrap()),
        query: format!("product_tenant_id={}", rig.client.tenant()),
    };
    let address = rig.base_url.trim_start_matches("http://").parse().unwrap();
    on_one_thread(http_load::closed_loop(address, &read, connections, Duration::from_secs(3)));
    let watch = Watch::start(&rig);
    let rate = on_one_thread(http_load::closed_loop(address, &read, connections, during));
    let report = watch.report((rate * during.as_secs_f64()) as usize);
    let latencies = on_one_thread(http_load::open_loop(address, &read, rate / 2.0, connections, during));
    let at = |part: f64| quantile(&latencies, part);
    println!(
        "http {connections} connections, log {log}: {rate:.0} signed reads/s; at half that rate p50 {:.1} ms  p99 {:.1} ms  max {:.1} ms  {report}",
        at(0.5),
        at(0.99),
        at(1.0),
    );
}

/// Threads of the load that wake each other would be work that no caller elsewhere makes.
fn on_one_thread<T>(load: impl Future<Output = T>) -> T {
    tokio::task::block_in_place(|| {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(load)
    })
}
