// A real OAuth 2 provider on loopback. Prints its address once it serves; ends with its standard input. A line there
// changes its keys, and is answered by a line: `rotate` has it sign with new ones from now on, `withdraw` has it publish
// those alone.
import { generateKeyPairSync, randomUUID } from 'node:crypto';
import { createServer } from 'node:http';
import { createInterface } from 'node:readline';
import Provider from 'oidc-provider';

const client = {
  client_secret: 'canary-client-secret-that-is-long-enough',
  application_type: 'native',
  redirect_uris: ['http://127.0.0.1/callback'],
  grant_types: ['authorization_code', 'refresh_token', 'client_credentials'],
  response_types: ['code'],
};
// How long the tokens of a client live that has them for a resource, in seconds.
const seconds = { 'by-form': 600, brief: 4 };

const newKeys = () =>
  [generateKeyPairSync('rsa', { modulusLength: 2048 }), generateKeyPairSync('ec', { namedCurve: 'P-256' })].map(
    ({ privateKey }) => ({ ...privateKey.export({ format: 'jwk' }), kid: randomUUID(), use: 'sig' }),
  );

const make = (issuer, keys) =>
  new Provider(issuer, {
    clients: [
      { ...client, client_id: 'by-header', token_endpoint_auth_method: 'client_secret_basic' },
      { ...client, client_id: 'by-form', token_endpoint_auth_method: 'client_secret_post' },
      { ...client, client_id: 'brief', token_endpoint_auth_method: 'client_secret_post' },
    ],
    jwks: { keys },
    scopes: ['openid', 'offline_access', 'read', 'write'],
    pkce: { required: () => true },
    features: {
      clientCredentials: { enabled: true },
      devInteractions: { enabled: true },
      introspection: { enabled: true },
      resourceIndicators: {
        enabled: true,
        defaultResource: () => undefined,
        useGrantedResource: () => true,
        // Only who names a resource gets a JSON Web Token.
        getResourceServerInfo: (context, resource, asking) => ({
          audience: resource,
          scope: 'read write',
          accessTokenFormat: 'jwt',
          accessTokenTTL: seconds[asking.clientId],
          jwt: { sign: { alg: context.oidc.params.scope === 'write' ? 'RS256' : 'ES256' } },
        }),
      },
      revocation: { enabled: true },
    },
    rotateRefreshToken: true,
    ttl: {
      AccessToken: 600,
      ClientCredentials: (context, token) => token.resourceServer?.accessTokenTTL ?? 600,
      Grant: 3600,
      Interaction: 600,
      RefreshToken: 3600,
      Session: 600,
    },
    cookies: { keys: ['a key for tests alone'] },
  });

const server = createServer((request, response) => handle(request, response));
let handle;
server.listen(0, '127.0.0.1', () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  let keys = newKeys();
  const serve = () => (handle = make(issuer, keys).callback());
  serve();
  console.log(issuer);
  const commands = createInterface({ input: process.stdin });
  commands.on('line', (command) => {
    keys = command === 'rotate' ? [...newKeys(), ...keys] : keys.slice(0, 2);
    serve();
    console.log(command);
  });
  commands.on('close', () => process.exit(0));
});
