//! What callers say about a connection, and its checks.

use providers::{
    Connection, ConnectionFault, ConnectionSettings, HostPolicy, ProviderKind, SECRET_MAX_BYTES, check_secret,
};
use schemars::JsonSchema;
use secrecy::SecretString;
use serde::Deserialize;

use super::store::LockedConnection;
use crate::pipeline::{
    Faults, Patch,
    error::ApiError,
    types::{Line, Name},
    validate::NAME_MAX,
};

/// Providers whose hosts are known. A relay's host is the caller's own choice, so relays are the operator's.
const PROVIDERS: [&str; 5] = [
    ProviderKind::Ses.as_str(),
    ProviderKind::Postmark.as_str(),
    ProviderKind::Sendgrid.as_str(),
    ProviderKind::Mailgun.as_str(),
    ProviderKind::Resend.as_str(),
];
/// The states a caller can choose.
const STATUSES: [&str; 2] = ["active", "disabled"];

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateConnection {
    #[schemars(with = "String", extend("enum" = PROVIDERS))]
    provider: Option<String>,
    /// To recognise it by; unique within the tenant.
    #[schemars(with = "Name<NAME_MAX>")]
    name: Option<String>,
    /// SES: `access key id:secret access key[:session token]`. Others: the API key.
    #[schemars(with = "String", length(min = 1, max = SECRET_MAX_BYTES))]
    secret: Option<String>,
    /// SES: the AWS region. SendGrid, Mailgun: `us` or `eu`.
    #[schemars(with = "Option<Line<NAME_MAX>>")]
    region: Option<String>,
    /// Mailgun: the domain the account sends for.
    #[schemars(with = "Option<Line<NAME_MAX>>")]
    domain: Option<String>,
    /// Postmark: the message stream.
    #[schemars(with = "Option<Line<NAME_MAX>>")]
    stream: Option<String>,
    /// SES: the configuration set.
    #[schemars(with = "Option<Line<NAME_MAX>>")]
    configuration_set: Option<String>,
    /// Most mails a second, of each delivery process.
    #[schemars(range(min = 1))]
    max_per_second: Option<u32>,
}

impl CreateConnection {
    /// The name and the account. Every fault is named by its field.
    pub(super) fn checked(self) -> Result<(String, Connection), ApiError> {
        let mut faults = Faults::default();
        let name = faults.name("name", self.name);
        let kind = faults.required("provider", self.provider).and_then(|text| {
            faults.one_of("provider", &text, &PROVIDERS);
            ProviderKind::parse(&text).filter(|kind| *kind != ProviderKind::Smtp)
        });
        let secret = SecretString::from(faults.required("secret", self.secret).unwrap_or_default());
        let settings = ConnectionSettings {
            region: self.region,
            domain: self.domain,
            stream: self.stream,
            configuration_set: self.configuration_set,
            max_per_second: self.max_per_second,
            base_url: None,
        };
        check_lines(&mut faults, &settings);
        if let Some(kind) = kind {
            note(&mut faults, settings.check(kind, &HostPolicy::default()).err());
            note(&mut faults, check_secret(kind, &secret).err());
        }
        faults.finish()?;
        let kind = kind.ok_or_else(ApiError::internal)?;
        Ok((name, Connection { kind, settings, secret }))
    }
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ChangeConnection {
    #[schemars(with = "Option<Name<NAME_MAX>>")]
    name: Option<String>,
    #[schemars(extend("enum" = STATUSES))]
    status: Option<String>,
    /// The secret that replaces the one there is.
    #[schemars(length(min = 1, max = SECRET_MAX_BYTES))]
    secret: Option<String>,
    #[schemars(with = "Option<Line<NAME_MAX>>")]
    region: Patch<String>,
    #[schemars(with = "Option<Line<NAME_MAX>>")]
    domain: Patch<String>,
    #[schemars(with = "Option<Line<NAME_MAX>>")]
    stream: Patch<String>,
    #[schemars(with = "Option<Line<NAME_MAX>>")]
    configuration_set: Patch<String>,
    /// Most mails a second, of each delivery process; null: no limit.
    #[schemars(with = "Option<u32>", range(min = 1))]
    max_per_second: Patch<u32>,
}

/// A connection as it is to be.
pub(super) struct WantedConnection {
    pub(super) name: String,
    pub(super) status: String,
    pub(super) settings: ConnectionSettings,
    pub(super) secret: Option<SecretString>,
}

impl ChangeConnection {
    /// The names of the fields that are to be changed: for the audit log.
    pub(super) fn fields(&self) -> Vec<&'static str> {
        let given = [
            ("name", self.name.is_some()),
            ("status", self.status.is_some()),
            ("secret", self.secret.is_some()),
            ("region", self.region.is_given()),
            ("domain", self.domain.is_given()),
            ("stream", self.stream.is_given()),
            ("configuration_set", self.configuration_set.is_given()),
            ("max_per_second", self.max_per_second.is_given()),
        ];
        given.into_iter().filter(|(_, given)| *given).map(|(name, _)| name).collect()
    }

    /// The connection after this change. Where an operator's connection leads is the operator's to change.
    pub(super) fn applied_to(self, before: &LockedConnection) -> Result<WantedConnection, ApiError> {
        let changes_account = self.fields().iter().any(|field| !matches!(*field, "name" | "status"));
        if changes_account && (before.kind == ProviderKind::Smtp || before.settings.base_url.is_some()) {
            return Err(ApiError::conflict("connection_of_operator")
                .detail("only name and status of a connection that the operator added can be changed"));
        }
        let mut faults = Faults::default();
        let name = match self.name {
            Some(name) => faults.name("name", Some(name)),
            None => before.name.clone(),
        };
        if let Some(status) = &self.status {
            faults.one_of("status", status, &STATUSES);
        }
        let old = before.settings.clone();
        let settings = ConnectionSettings {
            region: patched(self.region, old.region),
            domain: patched(self.domain, old.domain),
            stream: patched(self.stream, old.stream),
            configuration_set: patched(self.configuration_set, old.configuration_set),
            max_per_second: patched(self.max_per_second, old.max_per_second),
            base_url: old.base_url,
        };
        let secret = self.secret.map(SecretString::from);
        if changes_account {
            check_lines(&mut faults, &settings);
            note(&mut faults, settings.check(before.kind, &HostPolicy::default()).err());
            note(&mut faults, secret.as_ref().and_then(|secret| check_secret(before.kind, secret).err()));
        }
        faults.finish()?;
        Ok(WantedConnection { name, status: self.status.unwrap_or_else(|| before.status.clone()), settings, secret })
    }
}

fn patched<T>(patch: Patch<T>, before: Option<T>) -> Option<T> {
    patch.into_option().unwrap_or(before)
}

fn check_lines(faults: &mut Faults, settings: &ConnectionSettings) {
    let lines = [
        ("region", &settings.region),
        ("domain", &settings.domain),
        ("stream", &settings.stream),
        ("configuration_set", &settings.configuration_set),
    ];
    for (path, text) in lines {
        faults.one_line(path, text.as_deref().unwrap_or_default(), NAME_MAX);
    }
}

/// Adds the fault of a setting, under the setting's name.
fn note(faults: &mut Faults, fault: Option<ConnectionFault>) {
    let Some(fault) = fault else { return };
    let path = fault.setting().unwrap_or("provider").replace('-', "_");
    let code = match fault {
        ConnectionFault::Missing(_) => "required",
        ConnectionFault::Foreign(_) => "not_allowed",
        ConnectionFault::Invalid(_) | ConnectionFault::BaseUrl | ConnectionFault::Setup => "invalid",
    };
    faults.add(path, code, fault.to_string());
}
