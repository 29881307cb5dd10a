//! Registers routes: each once, with its endpoint and its documentation.

use std::sync::Arc;

use axum::{
    Router,
    handler::Handler,
    response::Response,
    routing::{MethodFilter, MethodRouter, on},
};
use http::Method;

use super::{
    body::BODY_MAX_BYTES,
    doc::{Doc, RouteInput},
};
use crate::state::Ingress;

/// The conditions under which the holder of an API key is admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyAccess {
    /// The scope the key must have.
    pub scope: &'static str,
    /// True if the request belongs to one tenant. The tenant is looked up along with the rest, under the name that the query has, or a
    /// body that is not too long to be searched.
    pub in_tenant: bool,
    /// The longest body, in bytes.
    pub body_max_bytes: usize,
}

impl KeyAccess {
    /// To a request of one tenant with a short body.
    #[must_use]
    pub fn new(scope: &'static str) -> Self {
        Self { scope, in_tenant: true, body_max_bytes: BODY_MAX_BYTES }
    }
}

type Mount = Box<dyn FnOnce(MethodFilter) -> MethodRouter<Arc<Ingress>>>;

/// The handler of a route, with its access rule.
pub struct RouteEndpoint {
    access: Option<KeyAccess>,
    input: RouteInput,
    mount: Mount,
}

impl RouteEndpoint {
    /// Any axum handler, with the access it checks itself.
    pub(super) fn new<T: 'static>(access: Option<KeyAccess>, handler: impl Handler<T, Arc<Ingress>>) -> Self {
        Self { access, input: RouteInput::Nothing, mount: Box::new(move |method| on(method, handler)) }
    }

    pub(crate) fn reads(self, input: RouteInput) -> Self {
        Self { input, ..self }
    }

    /// Passes every answer through a function, refusals of the pipeline included.
    pub(crate) fn map_response(self, map: fn(Response) -> Response) -> Self {
        let mount = self.mount;
        let mapped = move |response: Response| async move { map(response) };
        Self { mount: Box::new(move |method| mount(method).layer(axum::middleware::map_response(mapped))), ..self }
    }
}

impl std::fmt::Debug for RouteEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RouteEndpoint").field("access", &self.access).finish_non_exhaustive()
    }
}

/// A route that needs no credentials: for recipients, probes and readers of the documentation.
pub fn open<T: 'static>(handler: impl Handler<T, Arc<Ingress>>) -> RouteEndpoint {
    RouteEndpoint::new(None, handler)
}

/// One method of one path.
#[derive(Debug, Clone)]
pub struct Operation {
    /// The method.
    pub method: Method,
    /// The path, with `{…}` for parameters.
    pub path: &'static str,
    /// The callers that it admits; `None`: it needs no credentials.
    pub access: Option<KeyAccess>,
    pub(crate) input: RouteInput,
    pub(crate) doc: Doc,
}

impl Operation {
    /// Whether it has a body and an `Idempotency-Key`.
    #[must_use]
    pub fn is_write(&self) -> bool {
        !self.method.is_safe()
    }
}

/// Routes with their documentation. There is no other way to register one.
#[must_use]
#[derive(Debug, Default)]
pub struct Routes {
    pub(crate) router: Router<Arc<Ingress>>,
    pub(crate) operations: Vec<Operation>,
}

impl Routes {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn get(self, path: &'static str, endpoint: RouteEndpoint, doc: Doc) -> Self {
        self.on((Method::GET, MethodFilter::GET), path, endpoint, doc)
    }

    /// Adds a HEAD with a description of its own.
    pub fn head(self, path: &'static str, endpoint: RouteEndpoint, doc: Doc) -> Self {
        self.on((Method::HEAD, MethodFilter::HEAD), path, endpoint, doc)
    }

    pub fn post(self, path: &'static str, endpoint: RouteEndpoint, doc: Doc) -> Self {
        self.on((Method::POST, MethodFilter::POST), path, endpoint, doc)
    }

    pub fn patch(self, path: &'static str, endpoint: RouteEndpoint, doc: Doc) -> Self {
        self.on((Method::PATCH, MethodFilter::PATCH), path, endpoint, doc)
    }

    pub fn delete(self, path: &'static str, endpoint: RouteEndpoint, doc: Doc) -> Self {
        self.on((Method::DELETE, MethodFilter::DELETE), path, endpoint, doc)
    }

    fn on(
        mut self,
        (method, filter): (Method, MethodFilter),
        path: &'static str,
        endpoint: RouteEndpoint,
        doc: Doc,
    ) -> Self {
        self.operations.push(Operation { method, path, access: endpoint.access, input: endpoint.input, doc });
        Self { router: self.router.route(path, (endpoint.mount)(filter)), operations: self.operations }
    }

    pub fn merge(mut self, other: Self) -> Self {
        self.operations.extend(other.operations);
        Self { router: self.router.merge(other.router), operations: self.operations }
    }
}
