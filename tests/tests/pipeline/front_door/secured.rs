//! A NATS server as a person would install it: `ops/nats/accounts.conf`, TLS, users made by `postrider nats-user`.

use std::{
    collections::BTreeMap,
    fs,
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use pipeline::{eventually, process, rig::STAGES};
use tempfile::TempDir;

/// The server. Stops when dropped.
pub struct Secured {
    child: Child,
    url: String,
    dir: TempDir,
}

impl Drop for Secured {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Secured {
    pub async fn start() -> Self {
        let dir = TempDir::new().unwrap();
        let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops/nats");
        for name in ["accounts.conf", "products.conf"] {
            fs::copy(shipped.join(name), dir.path().join(name)).unwrap();
        }
        let mut env = BTreeMap::new();
        for name in STAGES.into_iter().chain(["ingress", "engine_all", "operator", "sys"]) {
            let seed = dir.path().join(format!("{name}.seed"));
            let said = process::run(&["nats-user", "stage", name, "--seed", seed.to_str().unwrap()], &BTreeMap::new());
            let (variable, key) = said.lines().next().unwrap().split_once('=').unwrap();
            env.insert(variable.to_owned(), key.to_owned());
        }
        let (seed, products) = (dir.path().join("demo.seed"), dir.path().join("products.conf"));
        let product = ["nats-user", "product", "demo", "production", "--seed", seed.to_str().unwrap(), "--config"];
        process::run(&[&product[..], &[products.to_str().unwrap()]].concat(), &BTreeMap::new());
        certificate(dir.path());
        let port = devtools::servers::free_port();
        let place = dir.path().display();
        let config = format!(
            "listen: 127.0.0.1:{port}\nserver_name: secured\nmax_payload: 8MB\n\
             tls {{ cert_file: \"{place}/tls.crt\", key_file: \"{place}/tls.key\" }}\n\
             include accounts.conf\n\
             jetstream {{ store_dir: \"{place}/store\", sync_interval: always, max_file_store: 64GB }}\n"
        );
        fs::write(dir.path().join("server.conf"), config).unwrap();
        let log = fs::File::create(dir.path().join("server.log")).unwrap();
        let child = Command::new(devtools::servers::nats_program().unwrap())
            .arg("--config")
            .arg(dir.path().join("server.conf"))
            .envs(&env)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut secured = Self { child, url: format!("tls://127.0.0.1:{port}"), dir };
        eventually("the server to listen", Duration::from_secs(60), || {
            if let Ok(Some(status)) = secured.child.try_wait() {
                panic!("nats-server ended with {status}: {}", secured.log());
            }
            let listens = TcpStream::connect(("127.0.0.1", port)).is_ok();
            async move { listens.then_some(()) }
        })
        .await;
        secured
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// The file with the seed of a user.
    pub fn seed(&self, name: &str) -> String {
        self.dir.path().join(format!("{name}.seed")).display().to_string()
    }

    /// The file with the authority that the server's certificate is of.
    pub fn authority(&self) -> String {
        self.dir.path().join("tls.crt").display().to_string()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("server.log")).unwrap_or_default()
    }
}

/// One certificate for this machine, which is its own authority.
fn certificate(place: &Path) {
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned(), "localhost".to_owned()]).unwrap();
    fs::write(place.join("tls.crt"), made.cert.pem()).unwrap();
    fs::write(place.join("tls.key"), made.signing_key.serialize_pem()).unwrap();
}
