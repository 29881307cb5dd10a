//! NATS as production runs it: three servers, every stream on each of them. One may die at any time.

use std::{
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use async_nats::jetstream;
use pipeline::Rig;
use serde_json::json;
use tempfile::TempDir;

const STARTED_WITHIN: Duration = Duration::from_secs(60);

struct Server {
    child: Child,
    name: String,
    port: u16,
    monitor: u16,
    directory: std::path::PathBuf,
}

impl Server {
    fn spawn(directory: &Path) -> Child {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(directory.join("log")).unwrap();
        Command::new(devtools::servers::nats_program().unwrap())
            .arg("--config")
            .arg(directory.join("nats.conf"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap()
    }

    fn kill9(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Until it has everything the others have.
    async fn healthy(&self) {
        let url = format!("http://127.0.0.1:{}/healthz", self.monitor);
        pipeline::eventually(&format!("{} to be healthy", self.name), STARTED_WITHIN, || async {
            reqwest::get(&url).await.ok().filter(|answer| answer.status().is_success()).map(drop)
        })
        .await;
    }
}

struct Cluster {
    servers: Vec<Server>,
    _place: TempDir,
}

impl Cluster {
    async fn start() -> Self {
        let place = TempDir::new().unwrap();
        let routes: Vec<u16> = (0..3).map(|_| devtools::servers::free_port()).collect();
        let addresses: Vec<String> = routes.iter().map(|port| format!("nats-route://127.0.0.1:{port}")).collect();
        let start = |number: usize| {
            let (name, port, monitor) =
                (format!("nats-{number}"), devtools::servers::free_port(), devtools::servers::free_port());
            let directory = place.path().join(&name);
            std::fs::create_dir(&directory).unwrap();
            // What ops/nats/cluster.conf says, without its users and certificates: ops/nats/try.py tries those.
            let config = json!({
                "server_name": name, "listen": format!("127.0.0.1:{port}"), "http": format!("127.0.0.1:{monitor}"),
                "max_payload": 8 << 20,
                "jetstream": {
                    "store_dir": directory.join("store"), "sync_interval": "always", "max_memory_store": 512 << 20,
                    "max_file_store": 64_u64 << 30,
                },
                "cluster": {"name": "postrider", "listen": format!("127.0.0.1:{}", routes[number]), "routes": addresses},
            });
            std::fs::write(directory.join("nats.conf"), config.to_string()).unwrap();
            Server { child: Server::spawn(&directory), name, port, monitor, directory }
        };
        let cluster = Self { servers: (0..3).map(start).collect(), _place: place };
        for server in &cluster.servers {
            server.healthy().await;
        }
        cluster
    }

    fn url(&self) -> String {
        let urls: Vec<String> = self.servers.iter().map(|server| format!("nats://127.0.0.1:{}", server.port)).collect();
        urls.join(",")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for server in &mut self.servers {
            let _ = server.child.kill();
            let _ = server.child.wait();
        }
    }
}

/// The server that leads a stream, and on how many it is.
async fn leader(url: &str, stream: &str) -> (String, usize) {
    let client = async_nats::ConnectOptions::new().connect(url.split(',').collect::<Vec<_>>()).await.unwrap();
    let context = jetstream::new(client);
    pipeline::eventually("a leader", STARTED_WITHIN, || async {
        let info = context.get_stream(stream).await.ok()?.cached_info().clone();
        Some((info.cluster?.leader?, info.config.num_replicas))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_three_bus_servers_dies_in_mid_campaign_and_nobody_is_lost_or_mailed_twice() {
    const RECIPIENTS: usize = 5_000;
    let mut cluster = Cluster::start().await;
    let url = cluster.url();
    let rig = Rig::shared().await;
    let mut rig = rig.with("NATS_URL", &url).with("STREAM_PREFIX", "").with("STREAM_REPLICAS", "3");
    rig.start_all().await;
    let (list, addresses) = rig.list_of(RECIPIENTS, "cluster", "example.com").await;
    let campaign = rig.campaign(list, "Hello", "<p>Hello {{ first_name }}</p>").await;
    rig.launch(campaign).await;
    let reached = rig.sink.wait(500, 60_000).await;
    assert!(reached < RECIPIENTS as u64, "the campaign was over before a server died");
    let (name, copies) = leader(&url, "MAIL_RENDERED").await;
    assert_eq!(copies, 3);
    let dead = cluster.servers.iter().position(|server| server.name == name).unwrap();
    cluster.servers[dead].kill9();
    rig.status(campaign, "sent", Duration::from_secs(120)).await;
    assert_eq!(rig.sink.counts(&addresses).await, vec![1; RECIPIENTS]);
    rig.books_balance().await;
    // Two of three are enough for everything else, too.
    let message = json!({
        "sender_id": rig.sender_id, "to": [{"email": "alone@example.com"}], "subject": "s", "html": "<p>h</p>",
        "message_class": "business",
    });
    rig.client.post("/v1/messages", message).await.expect(200);
    // And the third comes back and catches up.
    let directory = cluster.servers[dead].directory.clone();
    cluster.servers[dead].child = Server::spawn(&directory);
    cluster.servers[dead].healthy().await;
}
